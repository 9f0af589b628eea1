#include "worker/numerics/own_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "worker/numerics/cpu.h"
#include "worker/numerics/element_bits.h"
#include "worker/numerics/vector_loops.h"

namespace trainyard {
namespace {

// [Note: own products] The loops, from the outside, with the memory that each level should stay in:
//
//   columns of b, at most kColumns        b is packed for kPackedElements / columns of the depth: third-level cache
//     rows of a, at most Code::kRows      each thread packs its rows for kOwnDepth of the depth: second-level cache
//       panels of b, Code::kPanel columns   kOwnDepth x kPanel numbers: first-level cache
//         tiles, kTile rows x kPanel columns, whose sums stay in registers for kOwnDepth of the depth
//
// A packed factor has the numbers of a tile one after another in the order of their use; the last tile has zeros in
// place of missing rows and columns.
constexpr int64_t kColumns = 2304;
constexpr int64_t kPackedElements = int64_t{1} << 21;

// Vectors that are as wide as a register.
typedef float Floats4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Floats8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Floats16 __attribute__((vector_size(64), aligned(4), may_alias));

struct CodeAvx512 {
  using Register = Floats16;
  static constexpr int kLanesOfRegister = 16, kTile = 14, kPanel = 32;
};
struct CodeAvx2 {
  using Register = Floats8;
  static constexpr int kLanesOfRegister = 8, kTile = 6, kPanel = 16;
};
struct CodeAny {
  using Register = Floats4;
  static constexpr int kLanesOfRegister = 4, kTile = 4, kPanel = 8;
};
constexpr int64_t kRows = 84;  // a multiple of each kTile
constexpr int64_t kMaxPanel = CodeAvx512::kPanel;

constexpr int64_t RoundUpTo(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// One pass over a chunk of columns of b, for a part of the depth.
template <typename T>
struct Pass {
  MatrixRef<T> a, b;
  int64_t m = 0, k = 0;
  int64_t first_column = 0, columns = 0;
  int64_t first_depth = 0, depth = 0;
  int64_t panel = 0;       // columns of a panel
  int64_t block_rows = 0;  // rows that a thread computes at a time
  float alpha = 1, beta = 0;
  float* packed = nullptr;  // b
  float* c = nullptr;       // [m, n] beginning at first_column; null: `sink` takes the sums, and this is the only pass
  int64_t ldc = 0;
  const SumSink* sink = nullptr;  // null: the sums are needed in c
};

// Memory that a thread keeps for the next product.
class Kept {
 public:
  float* AtLeast(int64_t elements) {
    if (size_ < elements) {
      memory_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(elements));
      size_ = elements;
    }
    return memory_.get();
  }

 private:
  int64_t size_ = 0;
  std::unique_ptr<float[]> memory_;
};

struct Scratch {
  static Scratch& ForThread() {
    static thread_local Scratch scratch;
    return scratch;
  }
  Kept b, a, sums, whole_sums;
};

template <typename T>
TRAINYARD_INLINE void Widen(const T* from, int64_t size, float* to) {
  const auto* bits = BitsOf(from);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) StoreLanes(LoadLanes(bits + i), to + i);
  if (i == size) return;
  const Floats last = LoadFirstLanes(bits + i, size - i);
  std::memcpy(to + i, &last, static_cast<size_t>(size - i) * sizeof(float));
}

// Writes `width` rows or columns of a factor to one panel: kWidth numbers for each step of the depth.
// `is_along`: the numbers of one step of the depth are next to each other in memory.
template <typename T, int kWidth>
TRAINYARD_INLINE void PackPanel(const T* from, int64_t row, bool is_along, int64_t depth, int64_t width, float* to) {
  if (is_along && width == kWidth && kWidth % kLanes != 0) {
    for (int64_t p = 0; p < depth; ++p, from += row, to += kWidth) {
#pragma GCC unroll 32
      for (int q = 0; q < kWidth; ++q) to[q] = ToFloat(*BitsOf(from + q));
    }
    return;
  }
  if (is_along) {
    for (int64_t p = 0; p < depth; ++p, from += row, to += kWidth) {
      Widen(from, width, to);
      for (int64_t q = width; q < kWidth; ++q) to[q] = 0;
    }
    return;
  }
  constexpr int64_t kSteps = 64;
  float lines[kWidth][kSteps];
  if (width < kWidth) std::memset(lines, 0, sizeof lines);
  for (int64_t first = 0; first < depth; first += kSteps) {
    const int64_t steps = std::min(kSteps, depth - first);
    for (int64_t q = 0; q < width; ++q) Widen(from + q * row + first, steps, lines[q]);
    for (int64_t p = 0; p < steps; ++p, to += kWidth) {
#pragma GCC unroll 32
      for (int q = 0; q < kWidth; ++q) to[q] = lines[q][p];
    }
  }
}

// Packs panels [begin, end) of b; the panels of each kOwnDepth of the depth follow each other.
template <typename Code, typename T>
TRAINYARD_INLINE void PackB(const Pass<T>& pass, int64_t begin, int64_t end) {
  constexpr int kPanel = Code::kPanel;
  const int64_t panels = (pass.columns + kPanel - 1) / kPanel;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t before = i / panels * kOwnDepth, depth = std::min(kOwnDepth, pass.depth - before);
    const int64_t column = i % panels * kPanel, columns = std::min<int64_t>(kPanel, pass.columns - column);
    const int64_t p = pass.first_depth + before, j = pass.first_column + column;
    const T* from = pass.b.data + (pass.b.transposed ? j * pass.b.row + p : p * pass.b.row + j);
    PackPanel<T, kPanel>(from, pass.b.row, !pass.b.transposed, depth, columns,
                         pass.packed + before * panels * kPanel + column * depth);
  }
}

// c = alpha a b + beta c for one tile; with beta 0 the old values are not read.
template <typename Code>
TRAINYARD_INLINE void Tile(int64_t depth, const float* __restrict a, const float* __restrict b, float alpha, float beta,
                           float* __restrict c, int64_t ldc) {
  using Register = typename Code::Register;
  constexpr int kTile = Code::kTile, kLanesHere = Code::kLanesOfRegister;
  static_assert(Code::kPanel == 2 * kLanesHere);
  Register left[kTile], right[kTile];
#pragma GCC unroll 32
  for (int i = 0; i < kTile; ++i) left[i] = right[i] = Register{};
  for (int64_t p = 0; p < depth; ++p) {
    const Register b0 = *reinterpret_cast<const Register*>(b), b1 = *reinterpret_cast<const Register*>(b + kLanesHere);
#pragma GCC unroll 32
    for (int i = 0; i < kTile; ++i) {
      left[i] += a[i] * b0;
      right[i] += a[i] * b1;
    }
    a += kTile;
    b += Code::kPanel;
  }
#pragma GCC unroll 32
  for (int i = 0; i < kTile; ++i) {
    Register* to = reinterpret_cast<Register*>(c + i * ldc);
    Register* next = reinterpret_cast<Register*>(c + i * ldc + kLanesHere);
    if (beta == 0) {
      *to = left[i] * alpha;
      *next = right[i] * alpha;
    } else {
      *to = left[i] * alpha + *to * beta;
      *next = right[i] * alpha + *next * beta;
    }
  }
}

// A tile at the edge of c: computed in a copy, so that its numbers are rounded like those of a whole one.
template <typename Code>
TRAINYARD_INLINE void EdgeTile(int64_t depth, const float* a, const float* b, float alpha, float beta, float* c,
                               int64_t ldc, int64_t rows, int64_t columns) {
  float whole[Code::kTile * Code::kPanel];
  const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
  if (beta != 0) {
    std::memset(whole, 0, sizeof whole);
    for (int64_t i = 0; i < rows; ++i) std::memcpy(whole + i * Code::kPanel, c + i * ldc, bytes);
  }
  Tile<Code>(depth, a, b, alpha, beta, whole, Code::kPanel);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(c + i * ldc, whole + i * Code::kPanel, bytes);
}

// Computes blocks [begin, end) of rows.
template <typename Code, typename T>
TRAINYARD_INLINE void MultiplyRows(const Pass<T>& pass, int64_t begin, int64_t end) {
  constexpr int kTile = Code::kTile, kPanel = Code::kPanel;
  Scratch& scratch = Scratch::ForThread();
  float* const packed_a = scratch.a.AtLeast(kRows * kOwnDepth);
  const int64_t padded = RoundUpTo(pass.columns, kPanel);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first_row = block * pass.block_rows, rows = std::min(pass.block_rows, pass.m - first_row);
    float* c = pass.c == nullptr ? scratch.sums.AtLeast(kRows * kColumns) : pass.c + first_row * pass.ldc;
    const int64_t ldc = pass.c == nullptr ? padded : pass.ldc;
    for (int64_t before = 0; before < pass.depth; before += kOwnDepth) {
      const int64_t depth = std::min(kOwnDepth, pass.depth - before), p = pass.first_depth + before;
      const float beta = p == 0 ? pass.beta : 1;
      for (int64_t i = 0; i < rows; i += kTile) {
        const int64_t at = first_row + i;
        const T* from = pass.a.data + (pass.a.transposed ? p * pass.a.row + at : at * pass.a.row + p);
        PackPanel<T, kTile>(from, pass.a.row, pass.a.transposed, depth, std::min<int64_t>(kTile, rows - i),
                            packed_a + i * depth);
      }
      for (int64_t j = 0; j < pass.columns; j += kPanel) {
        const float* panel = pass.packed + before * padded + j * depth;
        const int64_t columns = std::min<int64_t>(kPanel, pass.columns - j);
        for (int64_t i = 0; i < rows; i += kTile) {
          float* to = c + i * ldc + j;
          if (rows - i >= kTile && columns == kPanel) {
            Tile<Code>(depth, packed_a + i * depth, panel, pass.alpha, beta, to, ldc);
          } else {
            EdgeTile<Code>(depth, packed_a + i * depth, panel, pass.alpha, beta, to, ldc,
                           std::min<int64_t>(kTile, rows - i), columns);
          }
        }
      }
    }
    if (pass.sink == nullptr || pass.first_depth + pass.depth < pass.k) continue;
    pass.sink->Take({.sums = c,
                     .row = ldc,
                     .first_row = first_row,
                     .rows = rows,
                     .first_column = pass.first_column,
                     .columns = pass.columns});
  }
}

// The same functions for three kinds of CPU.
template <typename T>
struct Loops {
  void (*pack)(const Pass<T>&, int64_t, int64_t);
  void (*multiply)(const Pass<T>&, int64_t, int64_t);
  int64_t tile, panel;
};
template <typename T>
TRAINYARD_AVX512 void PackAvx512(const Pass<T>& pass, int64_t begin, int64_t end) {
  PackB<CodeAvx512>(pass, begin, end);
}
template <typename T>
TRAINYARD_AVX2 void PackAvx2(const Pass<T>& pass, int64_t begin, int64_t end) {
  PackB<CodeAvx2>(pass, begin, end);
}
template <typename T>
void PackAny(const Pass<T>& pass, int64_t begin, int64_t end) {
  PackB<CodeAny>(pass, begin, end);
}
template <typename T>
TRAINYARD_AVX512 void MultiplyAvx512(const Pass<T>& pass, int64_t begin, int64_t end) {
  MultiplyRows<CodeAvx512>(pass, begin, end);
}
template <typename T>
TRAINYARD_AVX2 void MultiplyAvx2(const Pass<T>& pass, int64_t begin, int64_t end) {
  MultiplyRows<CodeAvx2>(pass, begin, end);
}
template <typename T>
void MultiplyAny(const Pass<T>& pass, int64_t begin, int64_t end) {
  MultiplyRows<CodeAny>(pass, begin, end);
}
template <typename T>
const Loops<T>& LoopsOfCpu() {
  static const Loops<T> avx512{PackAvx512<T>, MultiplyAvx512<T>, CodeAvx512::kTile, CodeAvx512::kPanel};
  static const Loops<T> avx2{PackAvx2<T>, MultiplyAvx2<T>, CodeAvx2::kTile, CodeAvx2::kPanel};
  static const Loops<T> any{PackAny<T>, MultiplyAny<T>, CodeAny::kTile, CodeAny::kPanel};
  static const Loops<T>* best = ForCpu(&avx512, &avx2, &any);
  return *best;
}

// Rows of a block, so that all threads get about as many blocks.
int64_t BlockRows(int64_t m, int64_t tile) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t blocks = RoundUpTo((m + kRows - 1) / kRows, threads);
  return std::min(kRows, RoundUpTo((m + blocks - 1) / blocks, tile));
}

template <typename T>
void RunPass(const Loops<T>& loops, Pass<T>& pass) {
  const int64_t panels = (pass.columns + pass.panel - 1) / pass.panel;
  const int64_t depths = (pass.depth + kOwnDepth - 1) / kOwnDepth;
  // Packing less than about 50 microseconds' worth of numbers is not worth another thread.
  constexpr int64_t kGrainElements = int64_t{1} << 16;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (pass.panel * std::min(kOwnDepth, pass.depth)));
  at::parallel_for(0, panels * depths, grain,
                   [&](int64_t begin, int64_t end) { loops.pack(pass, begin, end); });
  const int64_t blocks = (pass.m + pass.block_rows - 1) / pass.block_rows;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) { loops.multiply(pass, begin, end); });
}

// `c` null: `sink` takes the sums.
template <typename T>
void Run(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a, const MatrixRef<T>& b, float beta,
         float* c, int64_t ldc, const SumSink* sink) {
  const Loops<T>& loops = LoopsOfCpu<T>();
  Scratch& scratch = Scratch::ForThread();
  Pass<T> pass{.a = a, .b = b, .m = m, .k = k, .panel = loops.panel, .block_rows = BlockRows(m, loops.tile)};
  pass.alpha = alpha;
  pass.beta = beta;
  pass.sink = sink;
  for (int64_t column = 0; column < n; column += kColumns) {
    pass.first_column = column;
    pass.columns = std::min(kColumns, n - column);
    const int64_t padded = RoundUpTo(pass.columns, loops.panel);
    const int64_t max_depth = std::max(kPackedElements / padded / kOwnDepth, int64_t{1}) * kOwnDepth;
    pass.packed = scratch.b.AtLeast(padded * std::min(max_depth, k));
    pass.c = c == nullptr ? nullptr : c + column;
    pass.ldc = ldc;
    if (c == nullptr && k > max_depth) {
      pass.c = scratch.whole_sums.AtLeast(m * pass.columns);
      pass.ldc = pass.columns;
    }
    for (int64_t depth = 0; depth < k; depth += max_depth) {
      pass.first_depth = depth;
      pass.depth = std::min(max_depth, k - depth);
      RunPass(loops, pass);
    }
  }
}

}  // namespace

template <typename T>
void OwnGemm(int64_t m, int64_t n, int64_t k, float alpha, const MatrixRef<T>& a, const MatrixRef<T>& b, float beta,
             float* c, int64_t ldc) {
  Run(m, n, k, alpha, a, b, beta, c, ldc, /*sink=*/nullptr);
}

template <typename T>
void OwnGemm(int64_t m, int64_t n, int64_t k, const MatrixRef<T>& a, const MatrixRef<T>& b, const SumSink& sink) {
  Run(m, n, k, 1.0f, a, b, 0.0f, /*c=*/static_cast<float*>(nullptr), 0, &sink);
}

#define TRAINYARD_OWN_GEMM(T)                                                                                     \
  template void OwnGemm<T>(int64_t, int64_t, int64_t, float, const MatrixRef<T>&, const MatrixRef<T>&, float,     \
                           float*, int64_t);                                                                      \
  template void OwnGemm<T>(int64_t, int64_t, int64_t, const MatrixRef<T>&, const MatrixRef<T>&, const SumSink&);
TRAINYARD_OWN_GEMM(float)
TRAINYARD_OWN_GEMM(c10::BFloat16)
TRAINYARD_OWN_GEMM(c10::Half)
#undef TRAINYARD_OWN_GEMM

}  // namespace trainyard
