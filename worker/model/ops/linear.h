// x w + b for every token: x [.., in], w [in, out] as the files of GPT-2 have it, b [out].
//
// On a CPU in fp32, and in bf16 on most of them (HasGemm): MKL's routines, called on the tensors' own memory
// (numerics/gemm.h). 16-bit products are summed in fp32 and rounded once, with bias and residual already added, a few
// rows at a time so that the sums stay in cache; gradients of parameters are written in fp32 straight into the flat
// gradients of the strategy (GradientSink). Everything else is LibTorch's.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/model.h"
#include "worker/model/product_tape.h"

namespace trainyard {

// A parameter and its number in the model.
struct NumberedTensor {
  at::Tensor tensor;
  int number = -1;
};

struct LinearArgs {
  NumberedTensor weight;
  NumberedTensor bias = {};      // undefined: none
  at::Tensor residual = {};      // of the result's shape, is added to it; undefined: none
  GradientSink* sink = nullptr;  // must outlive backward
  ProductTape* tape = nullptr;   // keeps the result, or has it
};

// [.., out], dense. Can be differentiated once. REQUIRES: all of one type; weight dense.
at::Tensor Linear(const at::Tensor& x, const LinearArgs& args);

// x w^T for a head that shares the embedding's matrix: x [rows, in], w [out, in]. Can be differentiated once. REQUIRES:
// both of one type; w dense.
at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight);

// The gradient of a vector that was added to every row of what `rows` is the gradient of: their sum, given to `sink` if
// it takes it, in which case the result is undefined.
at::Tensor SumRowsIntoSink(const at::Tensor& rows, GradientSink* sink, int number);

}  // namespace trainyard
