#include "worker/model/ops/few_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "worker/model/ops/row_lanes.h"
#include "worker/numerics/element_bits.h"

namespace trainyard {
namespace {

constexpr int64_t kFewRowsGrain = int64_t{1} << 16;  // fewer elements of the matrix are not worth another thread
constexpr int64_t kColumnsAtOnce = 4;                // rows of a transposed matrix that are read together
constexpr int64_t kDepthAtOnce = 4;                  // rows of a plain matrix that are read together
constexpr int64_t kChunk = 1024;                     // columns of a plain matrix whose sums stay in the cache

struct FewRowsPass {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *w = nullptr, *bias = nullptr, *residual = nullptr;  // the last two may be null
  void* y = nullptr;
  int64_t rows = 0, depth = 0, columns = 0;
};

// The dot products of R rows of x and C rows of w. Each is summed lane by lane, and then across the lanes.
template <typename T, int R, int C>
TRAINYARD_INLINE void DotBlock(const T* x, const T* w, int64_t depth, float (&sums)[R][C]) {
  Floats lanes[R][C] = {};
  int64_t i = 0;
  for (; i + kLanes <= depth; i += kLanes) {
    Floats b[C];
    for (int c = 0; c < C; ++c) b[c] = LoadLanes(w + c * depth + i);
    for (int r = 0; r < R; ++r) {
      const Floats a = LoadLanes(x + r * depth + i);
      for (int c = 0; c < C; ++c) lanes[r][c] += a * b[c];
    }
  }
  if (i < depth) {
    for (int r = 0; r < R; ++r) {
      const Floats a = LoadFirstLanes(x + r * depth + i, depth - i);
      for (int c = 0; c < C; ++c) lanes[r][c] += a * LoadFirstLanes(w + c * depth + i, depth - i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = SumLanesByHalves(lanes[r][c]);
  }
}

// Adds bias and residual to `sum`, the sum of the element at (row, column) of the result, and stores it.
template <typename T>
TRAINYARD_INLINE void StoreSum(const FewRowsPass& pass, float sum, int64_t row, int64_t column) {
  const int64_t at = row * pass.columns + column;
  if (pass.bias != nullptr) sum += ToFloat(static_cast<const T*>(pass.bias)[column]);
  if (pass.residual != nullptr) sum += ToFloat(static_cast<const T*>(pass.residual)[at]);
  StoreNearest(sum, static_cast<T*>(pass.y) + at);
}

template <typename T, int R, int C>
TRAINYARD_INLINE void TransposedBlock(const FewRowsPass& pass, int64_t row, int64_t column) {
  float sums[R][C];
  DotBlock<T, R, C>(static_cast<const T*>(pass.x) + row * pass.depth,
                    static_cast<const T*>(pass.w) + column * pass.depth, pass.depth, sums);
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) StoreSum<T>(pass, sums[r][c], row + r, column + c);
  }
}

template <typename T, int C>
TRAINYARD_INLINE void TransposedColumns(const FewRowsPass& pass, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= pass.rows; row += 4) TransposedBlock<T, 4, C>(pass, row, column);
  for (; row < pass.rows; ++row) TransposedBlock<T, 1, C>(pass, row, column);
}

// Columns [first, last) of x w^T.
template <typename T>
TRAINYARD_INLINE void TransposedProduct(const FewRowsPass& pass, int64_t first, int64_t last) {
  int64_t column = first;
  for (; column + kColumnsAtOnce <= last; column += kColumnsAtOnce) TransposedColumns<T, kColumnsAtOnce>(pass, column);
  for (; column < last; ++column) TransposedColumns<T, 1>(pass, column);
}

// Adds N rows of w, each multiplied by an element of x, to the sums of `columns` columns.
template <typename T, int N>
TRAINYARD_INLINE void AddScaledRows(const T* x, const T* w, int64_t w_row, int64_t columns, float* sums) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t size = LanesAt(i, columns);
    Floats sum = LoadLanes(sums + i);
    for (int n = 0; n < N; ++n) sum += LoadUpTo(w + n * w_row + i, size) * ToFloat(x[n]);
    StoreLanes(sum, sums + i);
  }
}

// Columns [first, last) of x w, at most kChunk.
template <typename T>
TRAINYARD_INLINE void PlainProduct(const FewRowsPass& pass, int64_t first, int64_t last, float* sums) {
  const int64_t columns = last - first;
  std::fill(sums, sums + pass.rows * kChunk, 0.0f);
  const T *x = static_cast<const T*>(pass.x), *w = static_cast<const T*>(pass.w) + first;
  int64_t i = 0;
  for (; i + kDepthAtOnce <= pass.depth; i += kDepthAtOnce) {
    for (int64_t row = 0; row < pass.rows; ++row) {
      AddScaledRows<T, kDepthAtOnce>(x + row * pass.depth + i, w + i * pass.columns, pass.columns, columns,
                                     sums + row * kChunk);
    }
  }
  for (; i < pass.depth; ++i) {
    for (int64_t row = 0; row < pass.rows; ++row) {
      AddScaledRows<T, 1>(x + row * pass.depth + i, w + i * pass.columns, pass.columns, columns, sums + row * kChunk);
    }
  }
  for (int64_t row = 0; row < pass.rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) StoreSum<T>(pass, sums[row * kChunk + c], row, first + c);
  }
}

// `sums`: null if the matrix is transposed.
TRAINYARD_INLINE void FewRowsEither(const FewRowsPass& pass, int64_t first, int64_t last, float* sums) {
  const bool is_float = pass.type == at::kFloat;
  if (sums == nullptr) {
    is_float ? TransposedProduct<float>(pass, first, last) : TransposedProduct<uint16_t>(pass, first, last);
  } else {
    is_float ? PlainProduct<float>(pass, first, last, sums) : PlainProduct<uint16_t>(pass, first, last, sums);
  }
}

// The same loops, compiled for three kinds of CPU.
TRAINYARD_AVX512 void FewRowsAvx512(const FewRowsPass& pass, int64_t first, int64_t last, float* sums) {
  FewRowsEither(pass, first, last, sums);
}
TRAINYARD_AVX2 void FewRowsAvx2(const FewRowsPass& pass, int64_t first, int64_t last, float* sums) {
  FewRowsEither(pass, first, last, sums);
}
void FewRowsAny(const FewRowsPass& pass, int64_t first, int64_t last, float* sums) {
  FewRowsEither(pass, first, last, sums);
}

}  // namespace

bool CanMultiplyFewRows(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor MultiplyFewRows(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                           const at::Tensor& residual) {
  static const auto run = ForCpu(FewRowsAvx512, FewRowsAvx2, FewRowsAny);
  const int64_t columns = w.size(transposed ? 0 : 1);
  at::Tensor y = at::empty({x.size(0), columns}, x.options());
  const FewRowsPass pass{.type = x.scalar_type(),
                         .x = x.const_data_ptr(),
                         .w = w.const_data_ptr(),
                         .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                         .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                         .y = y.mutable_data_ptr(),
                         .rows = x.size(0),
                         .depth = x.size(1),
                         .columns = columns};
  // Each thread begins at a multiple of the vector length.
  const int64_t blocks = (columns + kLanes - 1) / kLanes,
                grain = std::max<int64_t>(1, kFewRowsGrain / kLanes / pass.depth);
  at::parallel_for(0, blocks, grain, [&](int64_t first_block, int64_t last_block) {
    const int64_t first = first_block * kLanes, last = std::min(columns, last_block * kLanes);
    if (transposed) return run(pass, first, last, nullptr);
    std::vector<float> sums(static_cast<size_t>(pass.rows * kChunk));
    for (int64_t chunk = first; chunk < last; chunk += kChunk) {
      run(pass, chunk, std::min(last, chunk + kChunk), sums.data());
    }
  });
  return y;
}

}  // namespace trainyard
