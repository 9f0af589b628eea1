#include "worker/model/ops/rounding.h"

#include "worker/numerics/element_bits.h"

namespace trainyard {
namespace {

template <typename T>
TRAINYARD_INLINE void Rows(const RoundingPass<T>& pass) {
  for (int64_t row = 0; row < pass.rows; ++row) {
    const float* sums = pass.sums + row * pass.sums_row;
    const auto* bias = BitsOf(pass.bias);
    const auto* residual = pass.residual == nullptr ? nullptr : BitsOf(pass.residual) + row * pass.to_row;
    auto* to = BitsOf(pass.to) + row * pass.to_row;
    int64_t i = 0;
    for (; i + kLanes <= pass.columns; i += kLanes) {
      Floats sum = LoadLanes(sums + i);
      if (bias != nullptr) sum += LoadLanes(bias + i);
      if (residual != nullptr) sum += LoadLanes(residual + i);
      StoreLanes(sum, to + i);
    }
    for (; i < pass.columns; ++i) {
      float sum = sums[i];
      if (bias != nullptr) sum += ToFloat(bias[i]);
      if (residual != nullptr) sum += ToFloat(residual[i]);
      StoreNearest(sum, to + i);
    }
  }
}

// The same loop for three kinds of CPU.
template <typename T>
TRAINYARD_AVX512 void RowsAvx512(const RoundingPass<T>& pass) {
  Rows(pass);
}
template <typename T>
TRAINYARD_AVX2 void RowsAvx2(const RoundingPass<T>& pass) {
  Rows(pass);
}
template <typename T>
void RowsAny(const RoundingPass<T>& pass) {
  Rows(pass);
}

}  // namespace

template <typename T>
void RoundRows(const RoundingPass<T>& pass) {
  static const auto run = ForCpu(RowsAvx512<T>, RowsAvx2<T>, RowsAny<T>);
  run(pass);
}
template void RoundRows<float>(const RoundingPass<float>&);
template void RoundRows<c10::BFloat16>(const RoundingPass<c10::BFloat16>&);
template void RoundRows<c10::Half>(const RoundingPass<c10::Half>&);

}  // namespace trainyard
