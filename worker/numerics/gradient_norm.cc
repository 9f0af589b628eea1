#include "worker/numerics/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "worker/numerics/cpu.h"
#include "worker/numerics/sixteen_bit.h"

namespace trainyard {
namespace {

// Lanes are summed separately, so that the compiler can use vector registers without changing the order of any sum.
constexpr int64_t kLanes = 32;
// The number of elements that one thread sums at a time; the blocks' sums are added in order.
constexpr int64_t kBlock = int64_t{1} << 16;

struct OfFloat {
  using Element = float;
  static inline __attribute__((always_inline)) double Value(float x) { return static_cast<double>(x); }
};
struct OfDouble {
  using Element = double;
  static inline __attribute__((always_inline)) double Value(double x) { return x; }
};
struct OfBfloat16 {
  using Element = uint16_t;
  static inline __attribute__((always_inline)) double Value(uint16_t x) {
    return static_cast<double>(Bfloat16ToFloat(x));
  }
};
struct OfHalf {
  using Element = uint16_t;
  static inline __attribute__((always_inline)) double Value(uint16_t x) { return static_cast<double>(HalfToFloat(x)); }
};

template <typename Of>
inline __attribute__((always_inline)) double SumBlock(const void* memory, int64_t first, int64_t last) {
  const auto* data = static_cast<const typename Of::Element*>(memory);
  std::array<double, kLanes> lanes{};
  int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double x = Of::Value(data[i + lane]);
      lanes[static_cast<size_t>(lane)] += x * x;
    }
  }
  for (; i < last; ++i) {
    const double x = Of::Value(data[i]);
    lanes[0] += x * x;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

inline __attribute__((always_inline)) double SumOfType(at::ScalarType type, const void* data, int64_t first,
                                                       int64_t last) {
  switch (type) {
    case at::kDouble:
      return SumBlock<OfDouble>(data, first, last);
    case at::kBFloat16:
      return SumBlock<OfBfloat16>(data, first, last);
    case at::kHalf:
      return SumBlock<OfHalf>(data, first, last);
    default:
      return SumBlock<OfFloat>(data, first, last);
  }
}

// The same sums for three kinds of CPU.
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"))) double SumAvx512(
    at::ScalarType type, const void* data, int64_t first, int64_t last) {
  return SumOfType(type, data, first, last);
}
__attribute__((target("avx2"))) double SumAvx2(at::ScalarType type, const void* data, int64_t first, int64_t last) {
  return SumOfType(type, data, first, last);
}
double SumAny(at::ScalarType type, const void* data, int64_t first, int64_t last) {
  return SumOfType(type, data, first, last);
}

// Appends to `norms` the norm of each 4,096 elements of `flat`. Only the squares of these norms are added in fp64, by
// the caller: a GPU needs six times longer to add the squares of 100 million gradients in fp64.
void AddNormsOnGpu(const at::Tensor& flat, std::vector<at::Tensor>& norms) {
  constexpr int64_t kColumns = 4096;
  const at::ScalarType type = flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t whole = flat.numel() / kColumns * kColumns;
  const auto add = [&](const at::Tensor& rows) {
    norms.push_back(at::linalg_vector_norm(rows, 2, {1}, /*keepdim=*/false, type).to(at::kDouble));
  };
  if (whole > 0) add(flat.narrow(0, 0, whole).view({-1, kColumns}));
  if (whole < flat.numel()) add(flat.narrow(0, whole, flat.numel() - whole).unsqueeze(0));
}

}  // namespace

at::Tensor QueueNorm(const std::vector<at::Tensor>& flats) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& flat : flats) AddNormsOnGpu(flat, norms);
  if (norms.empty()) return at::zeros({}, flats[0].options().dtype(at::kDouble));
  return at::linalg_vector_norm(at::cat(norms), 2, {}, /*keepdim=*/false, at::kDouble);
}

double SumOfSquares(const std::vector<at::Tensor>& flats) {
  if (!flats.empty() && !flats[0].is_cpu()) {
    const double norm = QueueNorm(flats).item<double>();
    return norm * norm;
  }
  double sum = 0;
  for (const at::Tensor& flat : flats) sum += SumOfSquares(flat);
  return sum;
}

double SumOfSquares(const at::Tensor& flat) {
  if (!flat.is_cpu()) return SumOfSquares(std::vector<at::Tensor>{flat});
  static const auto sum = ForCpu(SumAvx512, SumAvx2, SumAny);
  const int64_t size = flat.numel(), num_blocks = (size + kBlock - 1) / kBlock;
  std::vector<double> blocks(static_cast<size_t>(num_blocks));
  at::parallel_for(0, num_blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      blocks[static_cast<size_t>(block)] =
          sum(flat.scalar_type(), flat.const_data_ptr(), block * kBlock, std::min(size, (block + 1) * kBlock));
    }
  });
  double total = 0;
  for (double block : blocks) total += block;
  return total;
}

GradientScale ComputeGradientScale(double sum_of_squares, uint64_t num_tokens, double clip_norm, double seed) {
  const double divisor = static_cast<double>(num_tokens) * seed;
  GradientScale result;
  result.norm = std::sqrt(sum_of_squares) / divisor;
  result.scale = 1 / divisor;
  // PyTorch's clip_grad_norm_ adds the same 1e-6; without it, losses would differ in the last digits at some steps.
  if (clip_norm > 0) result.scale *= std::min(1.0, clip_norm / (result.norm + 1e-6));
  return result;
}

}  // namespace trainyard
