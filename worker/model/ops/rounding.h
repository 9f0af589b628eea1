// Adds bias and residual to fp32 sums, then rounds once to the type of the result.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace trainyard {

template <typename T>
struct RoundingPass {
  const float* sums = nullptr;  // [rows, columns]
  int64_t sums_row = 0;         // elements from one row to the next
  const T* bias = nullptr;      // [columns]; null: none
  const T* residual = nullptr;  // [rows, columns], with the rows of the result; null: none
  T* to = nullptr;              // [rows, columns]; may be the residual
  int64_t to_row = 0;
  int64_t rows = 0, columns = 0;
};
// T: float (nothing is rounded), c10::BFloat16, c10::Half.
template <typename T>
void RoundRows(const RoundingPass<T>& pass);

}  // namespace trainyard
