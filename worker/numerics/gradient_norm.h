// The norm of the gradient, and the factor by which it is scaled before the update. Every strategy computes the sum of
// squares of the part of the gradient that it holds; the scale is computed in one place, here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trainyard {

// Sum of the squares of a flat, contiguous tensor of fp32, fp64, bf16 or fp16, computed in fp64 in an order that
// depends only on the tensor's length, not on the CPU or the number of threads. Two layouts of the same gradients
// differ by fp64 rounding. NaN and infinities propagate. On a GPU, the squares of 4,096 elements at a time are added in
// fp32, or in fp64 if the tensor is fp64: a square above the range of fp32 makes the sum infinite.
double SumOfSquares(const at::Tensor& flat);
// The sum over several tensors in order; waits for a GPU only once.
double SumOfSquares(const std::vector<at::Tensor>& flats);
// For at least one tensor on a GPU: returns the square root of this sum there, in fp64, without waiting for the GPU.
at::Tensor QueueNorm(const std::vector<at::Tensor>& flats);

struct GradientScale {
  double scale = 1;  // multiply the summed gradient by this: 1 / tokens, times the factor of clipping
  double norm = 0;   // of the mean gradient, before clipping
};

// Gradients are divided here and nowhere else: they are sums over all tokens of the step, and `num_tokens` counts these
// tokens on all ranks. `clip_norm` 0: no clipping. `seed`: the factor with which backward was started (loss_scaler.h),
// which the gradients contain.
GradientScale ComputeGradientScale(double sum_of_squares, uint64_t num_tokens, double clip_norm, double seed = 1);

}  // namespace trainyard
