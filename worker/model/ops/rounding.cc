#include "worker/model/ops/rounding.h"

#include "worker/numerics/vector_loops.h"

namespace trainyard {
namespace {

TRAINYARD_INLINE const uint16_t* Bits(const c10::BFloat16* of) { return reinterpret_cast<const uint16_t*>(of); }

TRAINYARD_INLINE void Rows(const RoundingPass& pass) {
  for (int64_t row = 0; row < pass.rows; ++row) {
    const int64_t start = row * pass.columns;
    const float* sums = pass.sums + start;
    const uint16_t* bias = Bits(pass.bias);
    const uint16_t* residual = pass.residual == nullptr ? nullptr : Bits(pass.residual) + start;
    uint16_t* to = reinterpret_cast<uint16_t*>(pass.to) + start;
    int64_t i = 0;
    for (; i + kLanes <= pass.columns; i += kLanes) {
      Floats sum = LoadLanes(sums + i);
      if (bias != nullptr) sum += LoadLanes(bias + i);
      if (residual != nullptr) sum += LoadLanes(residual + i);
      StoreLanes(sum, to + i);
    }
    for (; i < pass.columns; ++i) {
      float sum = sums[i];
      if (bias != nullptr) sum += Bfloat16ToFloat(bias[i]);
      if (residual != nullptr) sum += Bfloat16ToFloat(residual[i]);
      to[i] = NearestBfloat16(sum);
    }
  }
}

// The same loop, compiled for three kinds of CPU.
TRAINYARD_AVX512 void RowsAvx512(const RoundingPass& pass) { Rows(pass); }
TRAINYARD_AVX2 void RowsAvx2(const RoundingPass& pass) { Rows(pass); }
void RowsAny(const RoundingPass& pass) { Rows(pass); }

}  // namespace

void RoundRows(const RoundingPass& pass) {
  static const auto run = ForCpu(RowsAvx512, RowsAvx2, RowsAny);
  run(pass);
}

}  // namespace trainyard
