// The CUDA source of cross_entropy.cc. A block of threads processes one row of scores.
#pragma once

namespace trainyard {

inline constexpr int kCrossEntropyThreads = 1024;

inline constexpr char kCrossEntropySource[] = R"cuda(
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

// Minus infinity.
#define NO_SCORE (-__int_as_float(0x7f800000))

struct Float {
  typedef float Element;
  static __device__ float Load(float value) { return value; }
  static __device__ float Store(float value) { return value; }
};
struct Bfloat16 {
  typedef u16 Element;
  static __device__ float Load(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
  static __device__ u16 Store(float value) {  // rounds to nearest, ties to even
    if (value != value) return 0x7fc0;
    const u32 bits = __float_as_uint(value);
    return static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};
struct Half {
  typedef u16 Element;
  static __device__ float Load(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ u16 Store(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

// The highest of some scores, and the sum of the exponentials of the differences from it.
struct Sum {
  float highest, total;
};

static __device__ Sum Add(const Sum& a, const Sum& b) {
  const float highest = fmaxf(a.highest, b.highest);
  // If neither sum has a score above NO_SCORE, both totals are 0, or NaN if a score is NaN.
  if (highest == NO_SCORE) return {highest, a.total + b.total};
  return {highest, a.total * expf(a.highest - highest) + b.total * expf(b.highest - highest)};
}

static __device__ Sum AddLanes(Sum sum) {
  for (int step = 16; step > 0; step /= 2) {
    const Sum other = {__shfl_xor_sync(~0u, sum.highest, step), __shfl_xor_sync(~0u, sum.total, step)};
    sum = Add(sum, other);
  }
  return sum;
}

// Returns the sum of all threads to every thread; its last bit may differ between threads. All threads have read their
// scores when it returns.
static __device__ Sum AddThreads(Sum sum) {
  __shared__ Sum of_warps[32];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  sum = AddLanes(sum);
  if (lane == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  return AddLanes(lane < warps ? of_warps[lane] : Sum{NO_SCORE, 0});
}

template <typename Type>
static __device__ void Run(typename Type::Element* scores, const i64* targets, float* losses, i64 columns, i64 stride,
                           float factor, int writes_gradients) {
  typedef typename Type::Element Element;
  constexpr int kCount = 16 / sizeof(Element);
  union Pack {
    uint4 bytes;
    Element elements[kCount];
  };
  scores += blockIdx.x * stride;
  const i64 target = targets[blockIdx.x];
  uint4* packs = reinterpret_cast<uint4*>(scores);
  // The loss of a target that is not a column is NaN.
  const float of_target = target < 0 ? 0 : target < columns ? Type::Load(scores[target]) : __int_as_float(0x7fc00000);

  Sum sum = {NO_SCORE, 0};
  for (i64 i = threadIdx.x; i < stride / kCount; i += blockDim.x) {
    Pack pack;
    pack.bytes = packs[i];
    float values[kCount];
    float highest = NO_SCORE;
    for (int k = 0; k < kCount; ++k) {
      values[k] = i * kCount + k < columns ? Type::Load(pack.elements[k]) : NO_SCORE;
      highest = fmaxf(highest, values[k]);
    }
    // fmaxf ignores NaN, so NaN must enter the total.
    float total = 0;
    for (int k = 0; k < kCount; ++k) {
      total += highest == NO_SCORE ? (values[k] != values[k] ? values[k] : 0) : expf(values[k] - highest);
    }
    sum = Add(sum, {highest, total});
  }
  sum = AddThreads(sum);
  // The highest score is subtracted before the logarithm, because their sum would have fewer exact digits.
  const float log_total = logf(sum.total);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0 : log_total - (of_target - sum.highest);
  if (!writes_gradients) return;
  for (i64 i = threadIdx.x; i < stride / kCount; i += blockDim.x) {
    Pack pack;
    pack.bytes = packs[i];
    for (int k = 0; k < kCount; ++k) {
      const i64 column = i * kCount + k;
      float gradient = 0;
      if (column < columns && target >= 0) {
        const float log_probability = Type::Load(pack.elements[k]) - sum.highest - log_total;
        gradient = factor * (column == target ? expm1f(log_probability) : expf(log_probability));
      }
      pack.elements[k] = Type::Store(gradient);
    }
    packs[i] = pack.bytes;
  }
}

#define KERNEL(name, Type)                                                                                          \
  extern "C" __global__ void __launch_bounds__(1024)                                                                \
      name(Type::Element* scores, const i64* targets, float* losses, i64 columns, i64 stride, float factor,         \
           int writes_gradients) {                                                                                  \
    Run<Type>(scores, targets, losses, columns, stride, factor, writes_gradients);                                  \
  }
KERNEL(cross_entropy_fp32, Float)
KERNEL(cross_entropy_bf16, Bfloat16)
KERNEL(cross_entropy_fp16, Half)
)cuda";

}  // namespace trainyard
