// The CUDA source of sum_rows.cc.
#pragma once

namespace trainyard {

inline constexpr int kSumRowsThreads = 256;

inline constexpr char kSumRowsSource[] = R"cuda(
// Each block has a row of `sums` and a few of its columns. It adds every gridDim.y-th group of 8 rows, a row per warp.
template <typename Type>
static __device__ void RunSumRows(const void* matrix, float* sums, i64 rows, int columns) {
  constexpr int kCount = Pack<Type>::kCount, kWidth = 32 * kCount;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, packs = columns / kCount, pack = blockIdx.x * 32 + lane;
  float sum[kCount] = {};
  if (pack < packs) {
    const Pack<Type>* from = reinterpret_cast<const Pack<Type>*>(matrix) + pack;
#pragma unroll 4
    for (i64 row = blockIdx.y * 8 + warp; row < rows; row += gridDim.y * 8) {
      const Pack<Type> in = from[row * packs];
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] += in[k];
    }
  }
  __shared__ float of_warps[8][kWidth];
#pragma unroll
  for (int k = 0; k < kCount; ++k) of_warps[warp][lane * kCount + k] = sum[k];
  __syncthreads();
  const int column = blockIdx.x * kWidth + threadIdx.x;
  if (threadIdx.x >= kWidth || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) total += of_warps[i][threadIdx.x];
  sums[blockIdx.y * static_cast<i64>(columns) + column] = total;
}

#define SUM_ROWS(name, Type)                                                                                        \
  extern "C" __global__ void __launch_bounds__(256) name(const void* matrix, float* sums, i64 rows, int columns) {  \
    RunSumRows<Type>(matrix, sums, rows, columns);                                                                  \
  }
SUM_ROWS(sum_rows_fp32, Float)
SUM_ROWS(sum_rows_bf16, Bfloat16)
SUM_ROWS(sum_rows_fp16, Half)
)cuda";

}  // namespace trainyard
