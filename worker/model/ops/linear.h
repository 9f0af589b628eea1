// x w + b for every token: x [.., in], w [in, out] as in GPT-2's files, b [out]. Or x w^T + b, with w [out, in] as in
// the files of Llama.
//
// On CPUs, in fp32 and, on many CPUs (HasGemm), in bf16 or fp16, MKL's routines run on the tensors' own memory
// (numerics/gemm.h). 16-bit products are summed in fp32 and rounded once, with bias and residual already added, a few
// rows at a time so that the sums stay in cache. Gradients of parameters are written in fp32 directly into the
// strategy's flat gradients (GradientSink). All other cases use LibTorch.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/model/model.h"
#include "worker/model/ops/sequence_part.h"
#include "worker/model/product_tape.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// A parameter and its index in the model.
struct NumberedTensor {
  at::Tensor tensor;
  int number = -1;
};

struct LinearArgs {
  NumberedTensor weight;
  bool transposed = false;       // the weight is [out, in]
  NumberedTensor bias = {};      // undefined: none
  at::Tensor residual = {};      // added to the result, and of its shape; undefined: none
  GradientSink* sink = nullptr;  // must outlive backward
  ProductTape* tape = nullptr;   // stores the result, or returns a stored one
  bool few_rows = false;         // for decoding: uses ops/few_rows.h if that supports x, without gradient and tape
  // Not null: a row product (tensor_group.h). x and the weight have this rank's part of the inputs. The result is the
  // sum over the group; bias and residual are whole and are added once. The group must outlive backward.
  TensorGroup* group = nullptr;
  // A row product of a part of the sequence: x has all rows; result and residual have this rank's rows, [share, out].
  // A column product (tensor_linear.h): x has this rank's rows, [share, in]; the result has all rows.
  std::optional<SequencePart> part = {};
};

// Returns [.., out], or [share, out], dense, which can be differentiated once. REQUIRES: all tensors have the same
// type; the weight is dense.
at::Tensor Linear(const at::Tensor& x, const LinearArgs& args);

// x w^T for a head that shares the embedding's matrix: x [rows, in], w [out, in]. Can be differentiated once. REQUIRES:
// both tensors have the same type; w is dense.
at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight, bool few_rows = false);

// The gradient of a vector that was added to every row: the sum of `rows`. If `sink` accepts this gradient, it is
// written there and an undefined tensor is returned. `number`: the index of the vector in the model's parameters.
at::Tensor SumRowsIntoSink(const at::Tensor& rows, GradientSink* sink, int number);

// The gradient of `weight`, parameter `number`: x^T grad, or grad^T x if the weight is transposed. Returns it, or an
// undefined tensor if it was written to the sink.
at::Tensor WeightGradientIntoSink(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight,
                                  bool transposed, GradientSink* sink, int number);

}  // namespace trainyard
