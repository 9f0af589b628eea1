// Adds bias and residual to fp32 sums, then rounds once to bf16 or fp16.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace trainyard {

template <typename T>
struct RoundingPass {
  const float* sums = nullptr;  // [rows, columns]
  const T* bias = nullptr;      // [columns]; null: none
  const T* residual = nullptr;  // [rows, columns]; null: none
  T* to = nullptr;              // [rows, columns]
  int64_t rows = 0, columns = 0;
};
// T: c10::BFloat16, c10::Half.
template <typename T>
void RoundRows(const RoundingPass<T>& pass);

}  // namespace trainyard
