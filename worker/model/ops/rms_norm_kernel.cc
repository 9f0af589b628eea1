#include "worker/model/ops/rms_norm_kernel.h"

#include <cmath>
#include <cstring>

#include "worker/model/ops/row_lanes.h"

namespace trainyard {
namespace {

template <typename T>
TRAINYARD_INLINE void Rows(const RmsNormForward& pass, int64_t first, int64_t last) {
  const T* weight = static_cast<const T*>(pass.weight);
  const int64_t columns = pass.columns;
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(pass.x) + row * columns;
    T* y = static_cast<T*>(pass.y) + row * columns;
    Floats squares = {};
    for (int64_t i = 0; i < columns; i += kLanes) {
      const Floats v = LoadUpTo(x + i, LanesAt(i, columns));
      squares += v * v;
    }
    const float inverse = 1.0f / std::sqrt(SumAcrossLanes(squares) / static_cast<float>(columns) + pass.eps);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      StoreUpTo(RoundedTo<T>(LoadUpTo(x + i, size) * inverse) * LoadUpTo(weight + i, size), y + i, size);
    }
    if (pass.inverse_rms != nullptr) pass.inverse_rms[row] = inverse;
  }
}

template <typename T>
TRAINYARD_INLINE void Rows(const RmsNormBackward& pass, int64_t first, int64_t last) {
  const T* weight = static_cast<const T*>(pass.weight);
  const int64_t columns = pass.columns;
  float* grad_weight = pass.grad_weight;
  std::memset(grad_weight, 0, static_cast<size_t>(columns) * sizeof(float));
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(pass.x) + row * columns;
    const T* grad_y = static_cast<const T*>(pass.grad_y) + row * columns;
    const float inverse = pass.inverse_rms[row];
    // Lanes beyond the row have a gradient of 0, so they add nothing.
    Floats sum = {};
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      const Floats normal = LoadUpTo(x + i, size) * inverse, g = LoadUpTo(grad_y + i, size);
      sum += g * LoadUpTo(weight + i, size) * normal;
      StoreUpTo(LoadUpTo(grad_weight + i, size) + g * RoundedTo<T>(normal), grad_weight + i, size);
    }
    if (pass.grad_x == nullptr) continue;
    T* grad_x = static_cast<T*>(pass.grad_x) + row * columns;
    const T* residual =
        pass.grad_residual == nullptr ? nullptr : static_cast<const T*>(pass.grad_residual) + row * columns;
    const float of_rms = SumAcrossLanes(sum) / static_cast<float>(columns);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      const Floats normal = LoadUpTo(x + i, size) * inverse;
      Floats g = (LoadUpTo(grad_y + i, size) * LoadUpTo(weight + i, size) - normal * of_rms) * inverse;
      if (residual != nullptr) g += LoadUpTo(residual + i, size);
      StoreUpTo(g, grad_x + i, size);
    }
  }
}

template <typename Pass>
TRAINYARD_INLINE void Either(const Pass& pass, int64_t first, int64_t last) {
  pass.type == at::kFloat ? Rows<float>(pass, first, last) : Rows<uint16_t>(pass, first, last);
}

// The same loops, compiled for three kinds of CPU.
template <typename Pass>
TRAINYARD_AVX512 void RunAvx512(const Pass& pass, int64_t first, int64_t last) {
  Either(pass, first, last);
}
template <typename Pass>
TRAINYARD_AVX2 void RunAvx2(const Pass& pass, int64_t first, int64_t last) {
  Either(pass, first, last);
}
template <typename Pass>
void RunAny(const Pass& pass, int64_t first, int64_t last) {
  Either(pass, first, last);
}
template <typename Pass>
void Run(const Pass& pass, int64_t first, int64_t last) {
  static const auto run = ForCpu(RunAvx512<Pass>, RunAvx2<Pass>, RunAny<Pass>);
  run(pass, first, last);
}

}  // namespace

void RunRmsNorm(const RmsNormForward& pass, int64_t first, int64_t last) { Run(pass, first, last); }
void RunRmsNorm(const RmsNormBackward& pass, int64_t first, int64_t last) { Run(pass, first, last); }

}  // namespace trainyard
