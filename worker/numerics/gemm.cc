#include "worker/numerics/gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "worker/numerics/cpu.h"
#include "worker/numerics/element_bits.h"

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
  // On CPUs that are not Intel's, MKL uses its fast kernels only with the lever (mkl_lever.h).
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

// [Note: widened products] Without 16-bit instructions a 16-bit product is computed as an fp32 product of the same
// numbers, which fp32 represents exactly. The factors are widened one tile at a time, into memory that each thread
// keeps. Widening costs one pass over a tile for up to kRows or kColumns multiplications of each of its numbers, which
// is a few percent. Tiles are equally large, because MKL is slow when few rows, columns or terms are left.
constexpr int64_t kRows = 512, kDepth = 512, kColumns = 768;

// Returns the size of the equal parts of at most `limit` into which `size` is divided.
int64_t EqualPart(int64_t size, int64_t limit) {
  const int64_t parts = (size + limit - 1) / limit;
  return (size + parts - 1) / parts;
}

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

template <typename T>
TRAINYARD_INLINE void WidenRows(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* tile) {
  for (int64_t i = 0; i < rows; ++i) ConvertLine(BitsOf(from + i * from_row), tile + i * columns, columns);
}
// The same loop for three kinds of CPU.
template <typename T>
TRAINYARD_AVX512 void WidenRowsAvx512(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* tile) {
  WidenRows(from, from_row, rows, columns, tile);
}
template <typename T>
TRAINYARD_AVX2 void WidenRowsAvx2(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* tile) {
  WidenRows(from, from_row, rows, columns, tile);
}
// CPUs with AVX2 have instructions that convert fp16.
template <>
TRAINYARD_AVX2 void WidenRowsAvx2(const c10::Half* from, int64_t from_row, int64_t rows, int64_t columns, float* tile) {
  for (int64_t i = 0; i < rows; ++i) {
    const HalfBits* line = BitsOf(from + i * from_row);
    float* to = tile + i * columns;
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
      _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(line + j))));
    }
    for (; j < columns; ++j) to[j] = ToFloat(line[j]);
  }
}
template <typename T>
void WidenRowsAny(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* tile) {
  WidenRows(from, from_row, rows, columns, tile);
}

// Copies a part as fp32 into `tile`, in the layout of the matrix: transposed or not.
template <typename T>
MatrixRef<float> Widen(const MatrixRef<T>& matrix, Part part, float* tile) {
  static const auto widen_rows = ForCpu(WidenRowsAvx512<T>, WidenRowsAvx2<T>, WidenRowsAny<T>);
  if (matrix.transposed) part = {part.first_column, part.columns, part.first_row, part.rows};
  widen_rows(matrix.data + part.first_row * matrix.row + part.first_column, matrix.row, part.rows, part.columns, tile);
  return {tile, part.columns, matrix.transposed};
}

template <typename T>
void WidenedGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a, const MatrixRef<T>& b, float beta,
                 float* c, int64_t ldc) {
  const Tiles& tiles = Tiles::ForThread();
  const int64_t max_depth = EqualPart(k, kDepth), max_columns = EqualPart(n, kColumns), max_rows = EqualPart(m, kRows);
  for (int64_t first_depth = 0; first_depth < k; first_depth += max_depth) {
    const int64_t depth = std::min(max_depth, k - first_depth);
    for (int64_t first_column = 0; first_column < n; first_column += max_columns) {
      const int64_t columns = std::min(max_columns, n - first_column);
      const MatrixRef<float> wide_b = Widen(b, {first_depth, depth, first_column, columns}, tiles.b.get());
      for (int64_t first_row = 0; first_row < m; first_row += max_rows) {
        const int64_t rows = std::min(max_rows, m - first_row);
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
  if (type == at::kHalf) return sgemm_ != nullptr && BestVectorCode() != VectorCode::kAvx512;
  return type == at::kBFloat16 && ChosenBfloat16Products() != Bfloat16Products::kLibTorch;
}

bool IsSlowInLibTorch(at::ScalarType type) {
  if (type == at::kHalf) return HasGemm(at::kHalf);
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

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<c10::Half>& a, const MatrixRef<c10::Half>& b,
          float beta, float* c, int64_t ldc) {
  WidenedGemm(m, n, k, alpha, a, b, beta, c, ldc);
}

}  // namespace trainyard
