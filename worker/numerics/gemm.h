// Matrix products in raw memory: by the MKL routines that LibTorch contains and exports, or by our own (own_gemm.h), as
// the plan in use says (ProductPlan::in_memory). For operations on many small pieces of tensors in place, and for 16-bit
// products whose sums are needed in fp32.
//
// Row-major: c [m, n] = alpha a [m, k] b [k, n] + beta c. The row strides are numbers of elements in memory; a
// transposed matrix is stored as [k, m] or [n, k]. With beta 0 the old values of c are not read.
//
// Thread-safe. Inside at::parallel_for a product uses only the calling thread; elsewhere at::get_num_threads().
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "worker/numerics/matrix_ref.h"
#include "worker/numerics/product_plan.h"

namespace trainyard {

// Whether MKL's products of this type can be used and are fast. fp32 and fp16: if LibTorch contains MKL; fp16 in
// [Note: widened products]. bf16: through MKL's own product if the CPU has instructions for it and MKL uses them
// (numerics/mkl_lever.h); through [Note: widened products] if the CPU has no AVX-512; not on CPUs in between, for which
// LibTorch uses oneDNN. Constant in a process.
bool MklMultiplies(at::ScalarType type);

// Whether Gemm supports matrices of `type` and is fast, with the plan in use. It depends on the CPU's features and the
// plan, and not on timings, so that two runs give the same numbers.
bool HasGemm(at::ScalarType type);

// Whether LibTorch's own products of this type are too slow to be an alternative when HasGemm is true: without oneDNN
// they add one number after another, and allocate memory from the system for every product. oneDNN multiplies fp16 on
// CPUs with AVX-512 at half the speed of fp32.
bool IsSlowInLibTorch(at::ScalarType type);

// REQUIRES: HasGemm of the type or, in tests, a LibTorch that contains MKL.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
          float beta, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
          const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc);
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::Half>& a, const MatrixRef<c10::Half>& b,
          float beta, float* c, int64_t ldc);

// The same by MKL, whatever the plan says. REQUIRES: MklMultiplies of the type or, in tests, a LibTorch with MKL.
void MklGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
             float beta, float* c, int64_t ldc);
void MklGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
             const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc);
void MklGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::Half>& a,
             const MatrixRef<c10::Half>& b, float beta, float* c, int64_t ldc);

}  // namespace trainyard
