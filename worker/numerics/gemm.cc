#include "worker/numerics/gemm.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "worker/numerics/cpu.h"
#include "worker/numerics/sixteen_bit.h"

// Weak symbols, because a LibTorch that was built with another library than MKL does not have them. This is the Fortran
// interface, which reads matrices by columns: a row-major matrix is transposed there, so the two factors are swapped.
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

// Which code multiplies bf16 matrices.
enum class Bfloat16Products { kLibTorch, kMkl, kWidened };

Bfloat16Products ChooseBfloat16Products() {
  const bool lever = mkl_serv_intel_cpu_true != nullptr && mkl_serv_intel_cpu_true() != 0;
  if (gemm_bf16bf16f32_ != nullptr && CpuMultipliesBfloat16() && lever) return Bfloat16Products::kMkl;
  // oneDNN has bf16 kernels for CPUs with AVX-512.
  if (BestVectorCode() == VectorCode::kAvx512 || sgemm_ == nullptr) return Bfloat16Products::kLibTorch;
  return Bfloat16Products::kWidened;
}

Bfloat16Products ChosenBfloat16Products() {
  static const Bfloat16Products products = ChooseBfloat16Products();
  return products;
}

template <typename T, typename Function>
void Call(Function* function, int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a,
          const MatrixRef<T>& b, float beta, float* c, int64_t ldc) {
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  const int row_a = static_cast<int>(a.row), row_b = static_cast<int>(b.row), row_c = static_cast<int>(ldc);
  function(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &columns, &rows, &depth, &alpha, b.data, &row_b, a.data,
           &row_a, &beta, c, &row_c);
}

// [Note: widened products] Without 16-bit instructions a bf16 product is computed as an fp32 product of the same
// numbers, which fp32 represents exactly. The factors are widened one tile at a time, into memory that each thread
// keeps: a tile of `b` stays in the second-level cache while all of `a` passes. Widening costs one pass over a tile for
// kRows or kColumns multiplications of each of its numbers, which is a few percent.
constexpr int64_t kRows = 512, kDepth = 256, kColumns = 1024;

struct Tiles {
  // The calling thread's tiles; created once.
  static Tiles& ForThread() {
    static thread_local Tiles tiles;
    return tiles;
  }
  const std::unique_ptr<float[]> a = std::make_unique_for_overwrite<float[]>(kRows * kDepth);
  const std::unique_ptr<float[]> b = std::make_unique_for_overwrite<float[]>(kDepth * kColumns);
};

// A range of rows and columns of a factor; the memory holds its transpose if MatrixRef::transposed is set.
struct Part {
  int64_t first_row, rows, first_column, columns;
};

// Copies a part as fp32 into `tile`, with the layout that it has in memory.
MatrixRef<float> Widen(const MatrixRef<c10::BFloat16>& matrix, Part part, float* tile) {
  if (matrix.transposed) part = {part.first_column, part.columns, part.first_row, part.rows};
  const uint16_t* from =
      reinterpret_cast<const uint16_t*>(matrix.data) + part.first_row * matrix.row + part.first_column;
  for (int64_t i = 0; i < part.rows; ++i) {
    for (int64_t j = 0; j < part.columns; ++j) {
      tile[i * part.columns + j] = Bfloat16ToFloat(from[i * matrix.row + j]);
    }
  }
  return {tile, part.columns, matrix.transposed};
}

void WidenedGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
                 const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc) {
  const Tiles& tiles = Tiles::ForThread();
  for (int64_t first_depth = 0; first_depth < k; first_depth += kDepth) {
    const int64_t depth = std::min(kDepth, k - first_depth);
    for (int64_t first_column = 0; first_column < n; first_column += kColumns) {
      const int64_t columns = std::min(kColumns, n - first_column);
      const MatrixRef<float> wide_b = Widen(b, {first_depth, depth, first_column, columns}, tiles.b.get());
      for (int64_t first_row = 0; first_row < m; first_row += kRows) {
        const int64_t rows = std::min(kRows, m - first_row);
        const MatrixRef<float> wide_a = Widen(a, {first_row, rows, first_depth, depth}, tiles.a.get());
        Call(sgemm_, rows, columns, depth, alpha, wide_a, wide_b, first_depth == 0 ? beta : 1,
             c + first_row * ldc + first_column, ldc);
      }
    }
  }
}

}  // namespace

bool HasGemm(at::ScalarType type) {
  if (type == at::kFloat) return sgemm_ != nullptr;
  return type == at::kBFloat16 && ChosenBfloat16Products() != Bfloat16Products::kLibTorch;
}

bool IsSlowInLibTorch(at::ScalarType type) {
  return type == at::kBFloat16 && ChosenBfloat16Products() == Bfloat16Products::kWidened;
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<float>& a, const MatrixRef<float>& b,
          float beta, float* c, int64_t ldc) {
  Call(sgemm_, m, n, k, alpha, a, b, beta, c, ldc);
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::BFloat16>& a,
          const MatrixRef<c10::BFloat16>& b, float beta, float* c, int64_t ldc) {
  if (ChosenBfloat16Products() == Bfloat16Products::kWidened) return WidenedGemm(m, n, k, alpha, a, b, beta, c, ldc);
  Call(gemm_bf16bf16f32_, m, n, k, alpha, a, b, beta, c, ldc);
}

}  // namespace trainyard
