#include "worker/model/ops/layer_norm_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/model/ops/row_lanes.h"

namespace trainyard {
namespace {

// 1 in the first `size` lanes, 0 in the others.
TRAINYARD_INLINE Floats FirstLanes(int64_t size) {
  Floats lanes = {};
  for (int64_t lane = 0; lane < size; ++lane) lanes[lane] = 1;
  return lanes;
}

template <typename T>
TRAINYARD_INLINE float MeanOf(const T* x, int64_t columns) {
  Floats sum = {};
  for (int64_t i = 0; i < columns; i += kLanes) sum += LoadUpTo(x + i, LanesAt(i, columns));
  return SumAcrossLanes(sum) / static_cast<float>(columns);
}

template <typename T>
TRAINYARD_INLINE float VarianceOf(const T* x, float mean, int64_t columns) {
  Floats sum = {};
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t size = LanesAt(i, columns);
    Floats d = LoadUpTo(x + i, size) - mean;
    if (size < kLanes) d *= FirstLanes(size);
    sum += d * d;
  }
  return SumAcrossLanes(sum) / static_cast<float>(columns);
}

template <typename T>
TRAINYARD_INLINE void Rows(const LayerNormForward& pass, int64_t first, int64_t last) {
  const T *weight = static_cast<const T*>(pass.weight), *bias = static_cast<const T*>(pass.bias);
  const int64_t columns = pass.columns;
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(pass.x) + row * columns;
    T* y = static_cast<T*>(pass.y) + row * columns;
    const float mean = MeanOf(x, columns);
    const float inverse = 1.0f / std::sqrt(VarianceOf(x, mean, columns) + pass.eps);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      const Floats normal = (LoadUpTo(x + i, size) - mean) * inverse;
      StoreUpTo(normal * LoadUpTo(weight + i, size) + LoadUpTo(bias + i, size), y + i, size);
    }
    if (pass.mean == nullptr) continue;
    pass.mean[row] = mean;
    pass.inverse_deviation[row] = inverse;
  }
}

template <typename T>
TRAINYARD_INLINE void Rows(const LayerNormBackward& pass, int64_t first, int64_t last) {
  const T* weight = static_cast<const T*>(pass.weight);
  const int64_t columns = pass.columns;
  float *grad_weight = pass.grad_weight, *grad_bias = pass.grad_bias;
  std::memset(grad_weight, 0, static_cast<size_t>(columns) * sizeof(float));
  std::memset(grad_bias, 0, static_cast<size_t>(columns) * sizeof(float));
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(pass.x) + row * columns;
    const T* grad_y = static_cast<const T*>(pass.grad_y) + row * columns;
    const float mean = pass.mean[row], inverse = pass.inverse_deviation[row];
    // Lanes beyond the row have a gradient of 0, so they add nothing.
    Floats sum = {}, sum_of_products = {};
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      const Floats normal = (LoadUpTo(x + i, size) - mean) * inverse, g = LoadUpTo(grad_y + i, size);
      const Floats of_normal = g * LoadUpTo(weight + i, size);
      sum += of_normal;
      sum_of_products += of_normal * normal;
      StoreUpTo(LoadUpTo(grad_weight + i, size) + g * normal, grad_weight + i, size);
      StoreUpTo(LoadUpTo(grad_bias + i, size) + g, grad_bias + i, size);
    }
    if (pass.grad_x == nullptr) continue;
    T* grad_x = static_cast<T*>(pass.grad_x) + row * columns;
    const T* residual =
        pass.grad_residual == nullptr ? nullptr : static_cast<const T*>(pass.grad_residual) + row * columns;
    const float of_mean = SumAcrossLanes(sum) / static_cast<float>(columns);
    const float of_deviation = SumAcrossLanes(sum_of_products) / static_cast<float>(columns);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t size = LanesAt(i, columns);
      const Floats normal = (LoadUpTo(x + i, size) - mean) * inverse;
      Floats g = (LoadUpTo(grad_y + i, size) * LoadUpTo(weight + i, size) - of_mean - normal * of_deviation) * inverse;
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

void RunLayerNorm(const LayerNormForward& pass, int64_t first, int64_t last) { Run(pass, first, last); }
void RunLayerNorm(const LayerNormBackward& pass, int64_t first, int64_t last) { Run(pass, first, last); }

}  // namespace trainyard
