// Adds bias and residual to fp32 sums, then rounds once to bf16.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trainyard {

struct RoundingPass {
  const float* sums = nullptr;              // [rows, columns]
  const c10::BFloat16* bias = nullptr;      // [columns]; null: none
  const c10::BFloat16* residual = nullptr;  // [rows, columns]; null: none
  c10::BFloat16* to = nullptr;              // [rows, columns]
  int64_t rows = 0, columns = 0;
};
void RoundRows(const RoundingPass& pass);

}  // namespace trainyard
