// Outputs of a unit's matrix products, kept from its first run, so that a second one (parallel/recompute.h) makes all
// but those anew. The body of a unit gets the tape and hands it to its products; their backward needs nothing of them
// but the factors, so a replayed product has the gradients of a made one, bit for bit.
//
//   tape.Addmm(...) ...   first run, without grad mode: made and kept
//   tape.Rewind()
//   tape.Addmm(...) ...   second run, under grad mode: given back, in the same order, and let go
//
// Belongs to the thread that runs the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trainyard {

class ProductTape {
 public:
  // bias + x * weight of [rows, in] and [in, out].
  at::Tensor Addmm(const at::Tensor& bias, const at::Tensor& x, const at::Tensor& weight);

  // REQUIRES: the second run asks for the products of the first, in their order.
  void Rewind() { replays_ = true; }

 private:
  bool replays_ = false;
  size_t next_ = 0;
  std::vector<at::Tensor> products_;
};

// By way of `tape`, unless that is null.
at::Tensor Addmm(const at::Tensor& bias, const at::Tensor& x, const at::Tensor& weight, ProductTape* tape);

}  // namespace trainyard
