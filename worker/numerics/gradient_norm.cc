#include "worker/numerics/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainyard {
namespace {

// Lanes are summed apart so that the compiler can use vector registers without changing the order of any sum.
constexpr int64_t kLanes = 32;
// So many elements are added up in the tensor's own type before fp64 takes over: rounding stays far below 1e-6.
constexpr int64_t kBlock = 4096;

template <typename T>
double SumSquares(const T* data, int64_t size) {
  double total = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    int64_t end = std::min(start + kBlock, size);
    std::array<T, kLanes> lanes{};
    int64_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += data[i + lane] * data[i + lane];
    }
    for (; i < end; ++i) lanes[0] += data[i] * data[i];
    double block = 0;
    for (T lane : lanes) block += static_cast<double>(lane);
    total += block;
  }
  return total;
}

}  // namespace

double SumOfSquares(const at::Tensor& flat) {
  if (flat.scalar_type() == at::kDouble) return SumSquares(flat.const_data_ptr<double>(), flat.numel());
  return SumSquares(flat.const_data_ptr<float>(), flat.numel());
}

GradientScale ScaleOf(double sum_of_squares, uint64_t num_tokens, double clip_norm) {
  double divisor = static_cast<double>(num_tokens);
  GradientScale result;
  result.norm = std::sqrt(sum_of_squares) / divisor;
  result.scale = 1 / divisor;
  // PyTorch's clip_grad_norm_ adds the same 1e-6; without it a step here and there would differ in its last digits.
  if (clip_norm > 0) result.scale *= std::min(1.0, clip_norm / (result.norm + 1e-6));
  return result;
}

}  // namespace trainyard
