// Our own matrix product, with the factors packed into panels. 16-bit factors become fp32 while they are packed, so a
// product of bf16 or fp16 takes little longer than one of fp32 on a CPU without 16-bit instructions.
//
// Every element of the result is a sum over the depth in one fixed order, with fused multiply-adds and partial sums of
// kOwnDepth terms: the bits depend neither on the number of threads, nor on the other rows and columns, nor on whether
// the CPU has AVX2 or AVX-512. On CPUs without FMA every operation is rounded.
//
// Thread-safe. Inside at::parallel_for a product uses only the calling thread; elsewhere at::get_num_threads(). Each
// thread keeps its panels for the next product.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "worker/numerics/matrix_ref.h"

namespace trainyard {

inline constexpr int64_t kOwnDepth = 512;

// What becomes of a block of finished sums, [rows, columns] beginning at (first_row, first_column). Called once for each
// element, by several threads at a time.
struct SumBlock {
  const float* sums;
  int64_t row;  // elements from one row of sums to the next
  int64_t first_row, rows, first_column, columns;
};
class SumSink {
 public:
  virtual ~SumSink() = default;
  virtual void Take(const SumBlock& block) const = 0;
};

// c = alpha a b + beta c, as Gemm (gemm.h).
template <typename T>
void OwnGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a, const MatrixRef<T>& b, float beta,
             float* c, int64_t ldc);

// a b; the sums are in cache when `sink` takes them.
template <typename T>
void OwnGemm(int64_t m, int64_t n, int64_t k, const MatrixRef<T>& a, const MatrixRef<T>& b, const SumSink& sink);

}  // namespace trainyard
