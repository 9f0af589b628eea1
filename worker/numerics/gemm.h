// Matrix products in raw memory, through the MKL routines that LibTorch contains and exports. Used for operations on
// many small pieces of tensors in place, and for 16-bit products whose sums are needed in fp32.
//
// Row-major: c [m, n] = alpha a [m, k] b [k, n] + beta c. The row strides are numbers of elements in memory; a
// transposed matrix is stored as [k, m] or [n, k]. With beta 0 the old values of c are not read.
//
// Thread-safe. Inside at::parallel_for a product uses only the calling thread; elsewhere, it uses
// at::get_num_threads() threads.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace trainyard {

// Whether Gemm supports matrices of `type` and is fast. fp32: if LibTorch contains MKL. bf16: through MKL's own product
// if the CPU has instructions for it and MKL uses them (numerics/mkl_lever.h); through [Note: widened products] of
// gemm.cc if the CPU has no AVX-512; not on other CPUs, for which LibTorch uses oneDNN. fp16: through [Note: widened
// products] if the CPU has no AVX-512; on other CPUs LibTorch uses oneDNN. The answer is constant in a process. It
// depends on the CPU's features and not on timings, so that two runs give the same numbers.
bool HasGemm(at::ScalarType type);

// Whether LibTorch's own products of this type are too slow to be an alternative when HasGemm is true: without oneDNN
// LibTorch adds one number after another, and allocates memory from the system for every product.
bool IsSlowInLibTorch(at::ScalarType type);

// A matrix and its layout.
template <typename T>
struct MatrixRef {
  const T* data;
  int64_t row;  // elements from one row to the next
  bool transposed = false;
};

// REQUIRES: HasGemm of the type or, in tests, a LibTorch that contains MKL.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
          float beta, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
          const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::Half>& a, const MatrixRef<c10::Half>& b,
          float beta, float* c, int64_t ldc);

}  // namespace trainyard
