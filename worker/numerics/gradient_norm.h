// The gradient's size, and by how much it is scaled before the optimizer sees it. Every strategy answers the first
// question for the part of the gradient it holds; the second is asked once, here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trainyard {

// Sum of the squares of a flat, contiguous tensor of fp32, fp64, bf16 or fp16: squared and added up in fp64, in an
// order that depends on its length alone, not on the CPU or the number of threads. Two layouts of the same gradients
// differ by fp64's rounding. NaN and infinities come through.
double SumOfSquares(const at::Tensor& flat);
// Of several, one after another; a GPU is waited for once.
double SumOfSquares(const std::vector<at::Tensor>& flats);

struct GradientScale {
  double scale = 1;  // what to multiply the summed gradient with: 1 / tokens, and the clipping
  double norm = 0;   // of the mean gradient, before clipping
};

// The one place that divides: gradients are sums over all tokens of the step, `num_tokens` counts them over all ranks.
// `clip_norm` 0: no clipping. `seed`: what backward was seeded with (loss_scaler.h), which the gradients carry.
GradientScale ComputeGradientScale(double sum_of_squares, uint64_t num_tokens, double clip_norm, double seed = 1);

}  // namespace trainyard
