// The loops of layer_norm.h, over raw memory. Rows have one type, fp32 or bf16; statistics and sums are fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trainyard {

struct LayerNormForward {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  void* y = nullptr;
  float *mean = nullptr, *inverse_deviation = nullptr;  // by row; may both be null
  int64_t columns = 0;
  float eps = 0;
};

struct LayerNormBackward {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *weight = nullptr, *grad_y = nullptr;
  const void* grad_residual = nullptr;  // the gradient of x from its use as residual, to be added; may be null
  void* grad_x = nullptr;               // may be null
  const float *mean = nullptr, *inverse_deviation = nullptr;
  float *grad_weight = nullptr, *grad_bias = nullptr;  // overwritten by the sums of these rows
  int64_t columns = 0;
};

// Rows [first, last).
void RunLayerNorm(const LayerNormForward& pass, int64_t first, int64_t last);
void RunLayerNorm(const LayerNormBackward& pass, int64_t first, int64_t last);

}  // namespace trainyard
