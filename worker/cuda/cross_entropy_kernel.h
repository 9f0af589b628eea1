// The CUDA source of cross_entropy.cc. A block of threads processes one row of scores.
#pragma once

namespace trainyard {

inline constexpr int kCrossEntropyThreads = 1024;

inline constexpr char kCrossEntropySource[] = R"cuda(
// Minus infinity.
#define NO_SCORE (-__int_as_float(0x7f800000))

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

// Adds the first `count` scores of a pack.
template <typename Type>
static __device__ void AddPack(const Pack<Type>& scores, int count, Sum& sum) {
  float values[Pack<Type>::kCount];
  float highest = sum.highest;
#pragma unroll
  for (int k = 0; k < Pack<Type>::kCount; ++k) {
    values[k] = k < count ? scores[k] : NO_SCORE;
    highest = fmaxf(highest, values[k]);
  }
  if (highest > sum.highest) {
    // The total of no scores is 0, or NaN if one was NaN.
    if (sum.highest != NO_SCORE) sum.total *= Type::Exp(sum.highest - highest);
    sum.highest = highest;
  }
#pragma unroll
  for (int k = 0; k < Pack<Type>::kCount; ++k) {
    // fmaxf ignores NaN, so NaN must enter the total.
    sum.total += highest == NO_SCORE ? (values[k] != values[k] ? values[k] : 0) : Type::Exp(values[k] - highest);
  }
}

template <typename Type>
static __device__ void RunCrossEntropy(typename Type::Element* scores, const i64* targets, float* losses, i64 columns,
                                       i64 stride, float factor, int writes_gradients) {
  constexpr int kCount = Pack<Type>::kCount;
  scores += blockIdx.x * stride;
  const i64 target = targets[blockIdx.x];
  Pack<Type>* packs = reinterpret_cast<Pack<Type>*>(scores);
  // The loss of a target that is not a column is NaN.
  const float of_target = target < 0 ? 0 : target < columns ? Type::Load(scores[target]) : __int_as_float(0x7fc00000);
  const int whole_packs = static_cast<int>(columns / kCount), all_packs = static_cast<int>(stride / kCount);

  Sum sum = {NO_SCORE, 0};
  for (int i = threadIdx.x; i < whole_packs; i += blockDim.x) AddPack(packs[i], kCount, sum);
  if (threadIdx.x == 0 && columns % kCount != 0) AddPack(packs[whole_packs], columns % kCount, sum);
  sum = AddThreads(sum);
  // The highest score is subtracted before the logarithm, because their sum would have fewer exact digits.
  const float log_total = logf(sum.total);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0 : log_total - (of_target - sum.highest);
  if (!writes_gradients) return;
  const int target_pack = target < 0 || target >= columns ? -1 : static_cast<int>(target / kCount);
  for (int i = threadIdx.x; i < all_packs; i += blockDim.x) {
    Pack<Type> pack = packs[i];
    const int count = target < 0 || i > whole_packs ? 0 : i == whole_packs ? columns % kCount : kCount;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float probability = Type::Exp(pack[k] - sum.highest - log_total);
      pack.elements[k] = Type::Store(k < count ? factor * probability : 0);
    }
    packs[i] = pack;
    // Only this thread writes this pack. 1 is subtracted exactly.
    if (i == target_pack) scores[target] = Type::Store(factor * expm1f(of_target - sum.highest - log_total));
  }
}

// The number of blocks that a multiprocessor of a data center's GPU can run at once.
#if __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1100)
#define BLOCKS 2
#else
#define BLOCKS 1
#endif

#define CROSS_ENTROPY(name, Type)                                                                            \
  extern "C" __global__ void __launch_bounds__(1024, BLOCKS)                                                 \
      name(Type::Element* scores, const i64* targets, float* losses, i64 columns, i64 stride, float factor,  \
           int writes_gradients) {                                                                           \
    RunCrossEntropy<Type>(scores, targets, losses, columns, stride, factor, writes_gradients);               \
  }
CROSS_ENTROPY(cross_entropy_fp32, Float)
CROSS_ENTROPY(cross_entropy_bf16, Bfloat16)
CROSS_ENTROPY(cross_entropy_fp16, Half)
)cuda";

}  // namespace trainyard
