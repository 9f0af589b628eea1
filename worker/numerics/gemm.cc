#include "worker/numerics/gemm.h"

// Weak: a LibTorch built on another library has no such symbols. Fortran's interface, which reads matrices by columns:
// what is row-major here is transposed there, so the factors change places.
extern "C" {
__attribute__((weak)) void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
                                  const int* k, const float* alpha, const float* a, const int* lda, const float* b,
                                  const int* ldb, const float* beta, float* c, const int* ldc);
__attribute__((weak)) void gemm_bf16bf16f32_(const char* transpose_a, const char* transpose_b, const int* m,
                                             const int* n, const int* k, const float* alpha, const c10::BFloat16* a,
                                             const int* lda, const c10::BFloat16* b, const int* ldb, const float* beta,
                                             float* c, const int* ldc);
__attribute__((weak)) int mkl_serv_intel_cpu_true();
}

namespace trainyard {
namespace {

bool HasBfloat16Gemm() {
  return gemm_bf16bf16f32_ != nullptr && __builtin_cpu_supports("avx512bf16") && mkl_serv_intel_cpu_true != nullptr &&
         mkl_serv_intel_cpu_true() != 0;
}

template <typename T, typename Function>
void Call(Function* function, int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a,
          const MatrixRef<T>& b, float beta, float* c, int64_t ldc) {
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  const int row_a = static_cast<int>(a.row), row_b = static_cast<int>(b.row), row_c = static_cast<int>(ldc);
  function(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &columns, &rows, &depth, &alpha, b.data, &row_b, a.data,
           &row_a, &beta, c, &row_c);
}

}  // namespace

bool HasGemm(at::ScalarType type) {
  static const bool has_bfloat16 = HasBfloat16Gemm();
  return type == at::kFloat ? sgemm_ != nullptr : type == at::kBFloat16 && has_bfloat16;
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
          float beta, float* c, int64_t ldc) {
  Call(sgemm_, m, n, k, alpha, a, b, beta, c, ldc);
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
          const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc) {
  Call(gemm_bf16bf16f32_, m, n, k, alpha, a, b, beta, c, ldc);
}

}  // namespace trainyard
