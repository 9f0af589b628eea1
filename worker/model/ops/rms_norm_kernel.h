// The loops of rms_norm.h, over raw memory. Rows have one type, fp32 or bf16; statistics and sums are fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trainyard {

struct RmsNormForward {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *weight = nullptr;
  void* y = nullptr;
  float* inverse_rms = nullptr;  // by row; may be null
  int64_t columns = 0;
  float eps = 0;
};

struct RmsNormBackward {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *weight = nullptr, *grad_y = nullptr;
  const void* grad_residual = nullptr;  // the gradient of x from its use as residual, to be added; may be null
  void* grad_x = nullptr;               // may be null
  const float* inverse_rms = nullptr;
  float* grad_weight = nullptr;  // overwritten by the sums of these rows
  int64_t columns = 0;
};

// Rows [first, last).
void RunRmsNorm(const RmsNormForward& pass, int64_t first, int64_t last);
void RunRmsNorm(const RmsNormBackward& pass, int64_t first, int64_t last);

}  // namespace trainyard
