#include "worker/model/ops/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "worker/numerics/element_bits.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

constexpr int64_t kRows = 64;           // rows of scores that are computed at a time
constexpr float kMinExponent = -87.0f;  // the lowest argument of ExpLanes

constexpr int64_t RoundUp(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Working memory. For 16-bit types it also holds the probabilities and their gradients in 16 bits, and the 32-bit
// result of a product before it is rounded.
struct Scratch {
  TRAINYARD_INLINE Scratch(const AttentionShape& shape, void* memory)
      : scores(kRows * RoundUp(shape.tokens)),
        block(kRows * RoundUp(shape.depth)),
        product(RoundUp(shape.tokens) * RoundUp(shape.depth)),
        a(static_cast<float*>(memory)),
        b(a + scores),
        rows(b + scores),
        keys(rows + block),
        values(keys + product),
        a16(reinterpret_cast<uint16_t*>(values + product)),
        b16(a16 + scores) {}
  const int64_t scores, block, product;  // numbers of elements
  float *const a, *const b;              // `scores` elements each: probabilities, and their gradients
  float* const rows;                     // a product for kRows tokens
  float *const keys, *const values;      // sums over all blocks of rows
  uint16_t *const a16, *const b16;       // 16-bit copies of a and b
};

// Writes e^(score - shift) for the first `valid` of `size` scores and 0 for the others. Returns their sum.
TRAINYARD_INLINE float Exponentials(float* scores, int64_t valid, int64_t size, float shift) {
  const Floats lowest = AllLanes(kMinExponent), masked = AllLanes(-std::numeric_limits<float>::infinity());
  const int64_t end = RoundUp(valid);
  for (int64_t i = valid; i < end; ++i) scores[i] = masked[0];
  Floats sum{};
  for (int64_t i = 0; i < end; i += kLanes) {
    const Floats score = LoadLanes(scores + i), exponent = score - shift;
    // This is a comparison and not a maximum, which would replace NaN by the lowest exponent.
    const Floats e = ExpLanes(exponent < lowest ? lowest : exponent);
    const Floats kept = score == masked ? Floats{} : e;
    StoreLanes(kept, scores + i);
    sum += kept;
  }
  std::fill(scores + end, scores + size, 0.0f);
  return SumAcrossLanes(sum);
}

// Replaces scores by probabilities. Returns the logarithm of the sum of exponentials.
TRAINYARD_INLINE float Softmax(float* scores, int64_t valid, int64_t size) {
  float highest = scores[0];
  Floats lanes = AllLanes(highest);
  int64_t i = 0;
  for (; i + kLanes <= valid; i += kLanes) lanes = MaxLanes(lanes, LoadLanes(scores + i));
  highest = MaxAcrossLanes(lanes);
  for (; i < valid; ++i) highest = std::max(highest, scores[i]);
  const float sum = Exponentials(scores, valid, size, highest);
  const float inverse = 1.0f / sum;
  for (i = 0; i < RoundUp(valid); i += kLanes) StoreLanes(LoadLanes(scores + i) * inverse, scores + i);
  return highest + std::log(sum);
}

template <typename T>
TRAINYARD_INLINE float Dot(const T* x, const T* y, int64_t size) {
  const auto *a = BitsOf(x), *b = BitsOf(y);
  Floats lanes{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) lanes += LoadLanes(a + i) * LoadLanes(b + i);
  float sum = SumAcrossLanes(lanes);
  for (; i < size; ++i) sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

// Replaces the gradients of the probabilities by the gradients of the unscaled scores.
TRAINYARD_INLINE void SoftmaxBackward(const float* probabilities, float* gradients, int64_t valid, float mean,
                                      float scale) {
  for (int64_t i = 0; i < valid; i += kLanes) {
    StoreLanes(LoadLanes(probabilities + i) * (LoadLanes(gradients + i) - mean) * scale, gradients + i);
  }
}

// Stores rows of a product in the result's type.
template <typename T>
TRAINYARD_INLINE void Store(const float* from, int64_t from_row, int64_t rows, int64_t depth, T* to, int64_t to_row) {
  for (int64_t i = 0; i < rows; ++i) ConvertLine(from + i * from_row, BitsOf(to) + i * to_row, depth);
}

// Returns `size` scores as elements of T; for 16-bit types in `copy`.
template <typename T>
TRAINYARD_INLINE const T* AsType(const float* scores, uint16_t* copy, int64_t size) {
  if constexpr (std::is_same_v<T, float>) {
    return scores;
  } else {
    T* const rounded = reinterpret_cast<T*>(copy);
    ConvertLine(scores, BitsOf(rounded), size);
    return rounded;
  }
}

// The columns of the scores of a block of rows: `count` tokens from `low` on, where `low` is the first token that any
// row attends to.
struct Columns {
  TRAINYARD_INLINE Columns(const AttentionShape& s, int64_t first, int64_t rows)
      : low(s.starts == nullptr ? 0 : s.starts[first]), count(first + rows - low), stride(RoundUp(count)) {}
  const int64_t low, count, stride;
};

// Prepares the scores of row `row`, which begin with that of token `low`: masks those of earlier documents. Returns the
// number of scores up to the row's own token.
TRAINYARD_INLINE int64_t MaskDocuments(const AttentionShape& s, int64_t row, int64_t low, float* scores) {
  if (s.starts != nullptr) {
    std::fill(scores, scores + (s.starts[row] - low), -std::numeric_limits<float>::infinity());
  }
  return row + 1 - low;
}

TRAINYARD_INLINE float ScaleOf(const AttentionShape& s) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(s.depth)));
}

template <typename T>
TRAINYARD_INLINE void Forward(const AttentionShape& s, const AttentionForward& group, void* memory) {
  const Scratch scratch(s, memory);
  const T *k = static_cast<const T*>(group.k), *v = static_cast<const T*>(group.v);
  const float scale = ScaleOf(s);
  for (int64_t head = 0; head < s.group; ++head) {
    const T* q = static_cast<const T*>(group.q) + head * s.depth;
    T* out = static_cast<T*>(group.out) + head * s.depth;
    float* log_sums = group.log_sums + head * s.tokens;
    for (int64_t first = 0; first < s.tokens; first += kRows) {
      const int64_t rows = std::min(kRows, s.tokens - first);
      const Columns columns(s, first, rows);
      const int64_t stride = columns.stride;
      const T *keys = k + columns.low * s.key_row, *values = v + columns.low * s.key_row;
      Gemm(rows, columns.count, s.depth, scale, {q + first * s.query_row, s.query_row}, {keys, s.key_row, true}, 0,
           scratch.a, stride);
      for (int64_t i = 0; i < rows; ++i) {
        float* scores = scratch.a + i * stride;
        log_sums[first + i] = Softmax(scores, MaskDocuments(s, first + i, columns.low, scores), stride);
      }
      const T* probabilities = AsType<T>(scratch.a, scratch.a16, rows * stride);
      T* out_rows = out + first * s.out_row;
      if constexpr (std::is_same_v<T, float>) {
        Gemm(rows, s.depth, columns.count, 1, {probabilities, stride}, {values, s.key_row}, 0, out_rows, s.out_row);
      } else {
        Gemm(rows, s.depth, columns.count, 1, {probabilities, stride}, {values, s.key_row}, 0, scratch.rows, s.depth);
        Store(scratch.rows, s.depth, rows, s.depth, out_rows, s.out_row);
      }
    }
  }
}

// What the backward pass of one head of queries reads and writes.
template <typename T>
struct QueryHead {
  const T *q, *k, *v, *out, *grad_out;
  const float* log_sums;
  T* grad_q;
  // fp32 sums of the gradients of keys and values, which all heads of the group add to.
  float *sum_k, *sum_v;
  int64_t sum_row;
  bool overwrites;  // whether the sums are overwritten: for the group's first head
};

template <typename T>
TRAINYARD_INLINE void BackwardOfHead(const AttentionShape& s, const QueryHead<T>& head, const Scratch& scratch) {
  constexpr bool kInPlace = std::is_same_v<T, float>;
  const float scale = ScaleOf(s);
  // Several blocks of rows contribute to a key and its value. The last block contributes to all keys and values, unless
  // the document of its first row begins after token 0. The last block runs first, so that it can overwrite the sums.
  const int64_t last = (s.tokens - 1) / kRows * kRows;
  const bool last_sees_all = s.starts == nullptr || s.starts[last] == 0;
  if (head.overwrites && !last_sees_all) {
    for (float* sums : {head.sum_k, head.sum_v}) {
      for (int64_t i = 0; i < s.tokens; ++i) std::fill_n(sums + i * head.sum_row, s.depth, 0.0f);
    }
  }
  for (int64_t first = last; first >= 0; first -= kRows) {
    const int64_t rows = std::min(kRows, s.tokens - first);
    const Columns columns(s, first, rows);
    const int64_t count = columns.count, stride = columns.stride;
    const float beta = head.overwrites && last_sees_all && first == last ? 0 : 1;
    const T *q_rows = head.q + first * s.query_row, *grad_rows = head.grad_out + first * s.out_row;
    const T *keys = head.k + columns.low * s.key_row, *values = head.v + columns.low * s.key_row;
    float *sum_k = head.sum_k + columns.low * head.sum_row, *sum_v = head.sum_v + columns.low * head.sum_row;
    Gemm(rows, count, s.depth, scale, {q_rows, s.query_row}, {keys, s.key_row, true}, 0, scratch.a, stride);
    Gemm(rows, count, s.depth, 1, {grad_rows, s.out_row}, {values, s.key_row, true}, 0, scratch.b, stride);
    for (int64_t i = 0; i < rows; ++i) {
      float *probabilities = scratch.a + i * stride, *gradients = scratch.b + i * stride;
      const int64_t valid = MaskDocuments(s, first + i, columns.low, probabilities);
      Exponentials(probabilities, valid, stride, head.log_sums[first + i]);
      for (int64_t j = count; j < stride; ++j) gradients[j] = 0;  // no product has written them
      const float mean = Dot(head.out + (first + i) * s.out_row, grad_rows + i * s.out_row, s.depth);
      SoftmaxBackward(probabilities, gradients, count, mean, scale);
    }
    const T* probabilities = AsType<T>(scratch.a, scratch.a16, rows * stride);
    const T* gradients = AsType<T>(scratch.b, scratch.b16, rows * stride);
    T* grad_q = head.grad_q + first * s.query_row;
    if constexpr (kInPlace) {
      Gemm(rows, s.depth, count, 1, {gradients, stride}, {keys, s.key_row}, 0, grad_q, s.query_row);
    } else {
      Gemm(rows, s.depth, count, 1, {gradients, stride}, {keys, s.key_row}, 0, scratch.rows, s.depth);
      Store(scratch.rows, s.depth, rows, s.depth, grad_q, s.query_row);
    }
    Gemm(count, s.depth, rows, 1, {gradients, stride, true}, {q_rows, s.query_row}, beta, sum_k, head.sum_row);
    Gemm(count, s.depth, rows, 1, {probabilities, stride, true}, {grad_rows, s.out_row}, beta, sum_v, head.sum_row);
  }
}

template <typename T>
TRAINYARD_INLINE void Backward(const AttentionShape& s, const AttentionBackward& group, void* memory) {
  const Scratch scratch(s, memory);
  T *grad_k = static_cast<T*>(group.grad_k), *grad_v = static_cast<T*>(group.grad_v);
  QueryHead<T> head{.q = static_cast<const T*>(group.q),
                    .k = static_cast<const T*>(group.k),
                    .v = static_cast<const T*>(group.v),
                    .out = static_cast<const T*>(group.out),
                    .grad_out = static_cast<const T*>(group.grad_out),
                    .log_sums = group.log_sums,
                    .grad_q = static_cast<T*>(group.grad_q),
                    .sum_k = scratch.keys,
                    .sum_v = scratch.values,
                    .sum_row = s.depth,
                    .overwrites = true};
  if constexpr (std::is_same_v<T, float>) {
    head.sum_k = grad_k, head.sum_v = grad_v, head.sum_row = s.key_row;
  }
  for (int64_t i = 0; i < s.group; ++i) {
    BackwardOfHead(s, head, scratch);
    head.q += s.depth, head.out += s.depth, head.grad_out += s.depth, head.grad_q += s.depth;
    head.log_sums += s.tokens;
    head.overwrites = false;
  }
  if constexpr (!std::is_same_v<T, float>) {
    Store(scratch.keys, s.depth, s.tokens, s.depth, grad_k, s.key_row);
    Store(scratch.values, s.depth, s.tokens, s.depth, grad_v, s.key_row);
  }
}

template <typename Head>
TRAINYARD_INLINE void RunEither(const AttentionShape& shape, const Head& head, void* scratch) {
  const auto run = [&]<typename T>(T) __attribute__((always_inline)) {
    if constexpr (std::is_same_v<Head, AttentionForward>) {
      Forward<T>(shape, head, scratch);
    } else {
      Backward<T>(shape, head, scratch);
    }
  };
  head.type == at::kFloat ? run(float()) : head.type == at::kHalf ? run(c10::Half()) : run(c10::BFloat16());
}

// The same function, compiled for three kinds of CPU.
template <typename Head>
TRAINYARD_AVX512 void RunAvx512(const AttentionShape& shape, const Head& head, void* scratch) {
  RunEither(shape, head, scratch);
}
template <typename Head>
TRAINYARD_AVX2 void RunAvx2(const AttentionShape& shape, const Head& head, void* scratch) {
  RunEither(shape, head, scratch);
}
template <typename Head>
void RunAny(const AttentionShape& shape, const Head& head, void* scratch) {
  RunEither(shape, head, scratch);
}

template <typename Head>
void RunBest(const AttentionShape& shape, const Head& head, void* scratch) {
  static const auto run = ForCpu(RunAvx512<Head>, RunAvx2<Head>, RunAny<Head>);
  run(shape, head, scratch);
}

}  // namespace

int64_t AttentionScratchBytes(const AttentionShape& shape) {
  const int64_t scores = kRows * RoundUp(shape.tokens), depth = RoundUp(shape.depth);
  return 12 * scores + 4 * (kRows + 2 * RoundUp(shape.tokens)) * depth;  // score buffers: two of 32 bits, two of 16
}

void RunAttention(const AttentionShape& shape, const AttentionForward& head, void* scratch) {
  RunBest(shape, head, scratch);
}
void RunAttention(const AttentionShape& shape, const AttentionBackward& head, void* scratch) {
  RunBest(shape, head, scratch);
}

}  // namespace trainyard
