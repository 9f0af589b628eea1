// The ranks that divide the matrices of a model among them (tensor parallelism), as the model's operations see them.
//
//   column product   the inputs are whole, each rank computes some of the outputs:    forward nothing, backward a sum
//   row product      each rank has some of the inputs and computes a part of the sum: forward a sum, backward nothing
//
// With sequence parallelism (ops/sequence_part.h) the ranks divide the rows of what is whole above: a sum becomes a
// reduce-scatter, and "nothing" an all-gather.
//
// Sources: Megatron-LM, arXiv:1909.08053, section 3; for sequence parallelism arXiv:2205.05198, section 4.2. All ranks
// call the same functions in the same order. Errors are thrown, like those of UnitHooks. Used by the thread that runs
// the model, backward included.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The tensors of operations that were started must not be used before Wait, which waits for all operations. All
  // tensors are dense.

  // Replaces `tensor` by the sum over the ranks.
  virtual void StartSum(const at::Tensor& tensor) = 0;
  // `out` becomes the concatenation of all ranks' `in` along the first dimension.
  virtual void StartAllGather(const at::Tensor& out, const at::Tensor& in) = 0;
  // `out` becomes this rank's part, along the first dimension, of the sum of all ranks' `in`.
  virtual void StartReduceScatter(const at::Tensor& out, const at::Tensor& in) = 0;
  virtual void Wait() = 0;

  void Sum(const at::Tensor& tensor) {
    StartSum(tensor);
    Wait();
  }
  void AllGather(const at::Tensor& out, const at::Tensor& in) {
    StartAllGather(out, in);
    Wait();
  }
  void ReduceScatter(const at::Tensor& out, const at::Tensor& in) {
    StartReduceScatter(out, in);
    Wait();
  }
};

}  // namespace trainyard
