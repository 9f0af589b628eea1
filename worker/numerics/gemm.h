// Products of matrices in raw memory, by the routines of MKL that LibTorch carries and exports: for operations that
// work on many small pieces of tensors where they lie, and for 16-bit products whose sums are wanted in fp32.
//
// Row-major: c [m, n] = alpha a [m, k] b [k, n] + beta c. `lda` and so on: elements from one row of what lies in memory
// to the next; a transposed matrix lies as [k, m] or [n, k]. With beta 0 what c holds is not read.
//
// Thread-safe. Within at::parallel_for a product has the one thread that calls; elsewhere at::get_num_threads().
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trainyard {

// Whether Gemm may be called with matrices of `type`, and is fast. fp32: wherever LibTorch carries MKL. bf16: by MKL's
// own product where the CPU has instructions for it and MKL takes them (numerics/mkl_lever.h); by [Note: widened
// products] where the CPU has no AVX-512; not on the CPUs in between, for which LibTorch has oneDNN's. Always the same
// in a process; decided by what the CPU has, not by a timing, so that two runs have the same numbers.
bool HasGemm(at::ScalarType type);

// Whether LibTorch's own products of this type are no choice where HasGemm: without oneDNN they add up one number after
// another, and take memory from the system for every product.
bool IsSlowInLibTorch(at::ScalarType type);

// A matrix and how it is read.
template <typename T>
struct MatrixRef {
  const T* data;
  int64_t row;  // elements from a row to the next
  bool transposed = false;
};

// REQUIRES: HasGemm of the type, or, for tests, that LibTorch carries MKL.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
          float beta, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
          const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc);

}  // namespace trainyard
