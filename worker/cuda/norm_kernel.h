// The CUDA source of norm.cc. A pack is 16 bytes of a row, which one thread reads at once.
#pragma once

namespace trainyard {

inline constexpr char kNormSource[] = R"cuda(
// A block of threads processes one row after another: thread t has pack t of every row, or zeros if a row has fewer
// packs. While it computes, it reads the next row.
template <typename Type>
static __device__ Pack<Type> ReadPack(const void* matrix, i64 row, i64 rows, int packs) {
  if (row >= rows || threadIdx.x >= packs) return Pack<Type>();
  return reinterpret_cast<const Pack<Type>*>(matrix)[row * packs + threadIdx.x];
}

template <typename Type>
static __device__ void WritePack(const Pack<Type>& pack, void* matrix, i64 row, int packs) {
  if (threadIdx.x < packs) reinterpret_cast<Pack<Type>*>(matrix)[row * packs + threadIdx.x] = pack;
}

// Reads this thread's part of a parameter, which may begin at any element, or zeros.
template <typename Type>
static __device__ void ReadParameter(const typename Type::Element* from, int packs, float (&to)[Pack<Type>::kCount]) {
#pragma unroll
  for (int k = 0; k < Pack<Type>::kCount; ++k) {
    to[k] = from != nullptr && threadIdx.x < packs ? Type::Load(from[threadIdx.x * Pack<Type>::kCount + k]) : 0;
  }
}

// Sums over a block. Two arrays alternate, so that a thread that is ahead overwrites nothing that another still reads.
struct BlockSums {
  float (*of_warps)[32];
  int turn = 0;

  // Returns the sum to every thread, with the same bits.
  __device__ float Add(float value) {
    float* own = of_warps[turn];
    turn ^= 1;
    value = SumOfLanes(value);
    if (threadIdx.x % 32 == 0) own[threadIdx.x / 32] = value;
    __syncthreads();
    return SumOfLanes(threadIdx.x % 32 < blockDim.x / 32 ? own[threadIdx.x % 32] : 0);
  }
};

template <typename Type, bool kIsCentered>
static __device__ void RunNorm(const void* x, const typename Type::Element* weight, const typename Type::Element* bias,
                               void* y, float* means, float* inverses, i64 rows, int columns, float eps) {
  constexpr int kCount = Pack<Type>::kCount;
  __shared__ float of_warps[2][32];
  BlockSums sums = {of_warps};
  const int packs = columns / kCount;
  float w[kCount], b[kCount];
  ReadParameter<Type>(weight, packs, w);
  ReadParameter<Type>(bias, packs, b);
  Pack<Type> next = ReadPack<Type>(x, blockIdx.x, rows, packs);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Pack<Type> pack = next;
    next = ReadPack<Type>(x, row + gridDim.x, rows, packs);
    float mean = 0, squares = 0;
    if (kIsCentered) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) mean += pack[k];
      mean = sums.Add(mean) / columns;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) squares += (pack[k] - mean) * (pack[k] - mean);
    const float inverse = 1 / sqrtf(sums.Add(threadIdx.x < packs ? squares : 0) / columns + eps);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float normalised = (pack[k] - mean) * inverse;
      // As in transformers, RMS norm rounds before the product.
      if (!kIsCentered) normalised = Type::Load(Type::Store(normalised));
      pack.elements[k] = Type::Store(kIsCentered ? normalised * w[k] + b[k] : normalised * w[k]);
    }
    WritePack(pack, y, row, packs);
    if (threadIdx.x == 0) {
      if (kIsCentered) means[row] = mean;
      inverses[row] = inverse;
    }
  }
}

// Block b writes its part of the gradient of the weight to row b of `of_weights`, and that of the bias to `of_biases`.
template <typename Type, bool kIsCentered>
static __device__ void RunNormBackward(const void* x, const typename Type::Element* weight, const void* grad_y,
                                       const void* grad_residual, const float* means, const float* inverses,
                                       void* grad_x, float* of_weights, float* of_biases, i64 rows, int columns) {
  constexpr int kCount = Pack<Type>::kCount;
  __shared__ float of_warps[4][32];
  BlockSums sums = {of_warps}, products = {of_warps + 2};
  const int packs = columns / kCount;
  float w[kCount], of_weight[kCount] = {}, of_bias[kCount] = {};
  ReadParameter<Type>(weight, packs, w);
  const bool has_residual = grad_residual != nullptr;
  Pack<Type> next_x = ReadPack<Type>(x, blockIdx.x, rows, packs),
             next_y = ReadPack<Type>(grad_y, blockIdx.x, rows, packs),
             next_residual = ReadPack<Type>(grad_residual, blockIdx.x, has_residual ? rows : 0, packs);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pack<Type> in = next_x, of_y = next_y, residual = next_residual;
    next_x = ReadPack<Type>(x, row + gridDim.x, rows, packs);
    next_y = ReadPack<Type>(grad_y, row + gridDim.x, rows, packs);
    next_residual = ReadPack<Type>(grad_residual, row + gridDim.x, has_residual ? rows : 0, packs);
    const float mean = kIsCentered ? means[row] : 0, inverse = inverses[row];
    float sum = 0, product = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float normalised = (in[k] - mean) * inverse;
      of_weight[k] += of_y[k] * (kIsCentered ? normalised : Type::Load(Type::Store(normalised)));
      of_bias[k] += of_y[k];
      sum += of_y[k] * w[k];
      product += of_y[k] * w[k] * normalised;
    }
    if (grad_x == nullptr) continue;
    sum = kIsCentered ? sums.Add(sum) / columns : 0;
    product = products.Add(product) / columns;
    Pack<Type> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float gradient = inverse * (of_y[k] * w[k] - sum - (in[k] - mean) * inverse * product);
      result.elements[k] = Type::Store(gradient + residual[k]);
    }
    WritePack(result, grad_x, row, packs);
  }
  if (threadIdx.x >= packs) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const i64 place = static_cast<i64>(blockIdx.x) * columns + threadIdx.x * kCount + k;
    of_weights[place] = of_weight[k];
    if (kIsCentered) of_biases[place] = of_bias[k];
  }
}

#define NORM(name, Type, is_centered)                                                                              \
  extern "C" __global__ void __launch_bounds__(1024)                                                               \
      name(const void* x, const Type::Element* weight, const Type::Element* bias, void* y, float* means,           \
           float* inverses, i64 rows, int columns, float eps) {                                                    \
    RunNorm<Type, is_centered>(x, weight, bias, y, means, inverses, rows, columns, eps);                           \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(1024)                                                               \
      name##_backward(const void* x, const Type::Element* weight, const void* grad_y, const void* grad_residual,   \
                      const float* means, const float* inverses, void* grad_x, float* of_weights,                  \
                      float* of_biases, i64 rows, int columns) {                                                   \
    RunNormBackward<Type, is_centered>(x, weight, grad_y, grad_residual, means, inverses, grad_x, of_weights,      \
                                       of_biases, rows, columns);                                                  \
  }
NORM(layer_norm_fp32, Float, true)
NORM(layer_norm_bf16, Bfloat16, true)
NORM(layer_norm_fp16, Half, true)
NORM(rms_norm_fp32, Float, false)
NORM(rms_norm_bf16, Bfloat16, false)
NORM(rms_norm_fp16, Half, false)
)cuda";

}  // namespace trainyard
