#include "worker/model/ops/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "worker/numerics/gemm.h"
#include "worker/numerics/vector_loops.h"

namespace trainyard {
namespace {

constexpr int64_t kRows = 64;  // of scores per block
constexpr float kMinExponent = -87.0f;

constexpr int64_t RoundUp(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Working memory for one head. For bf16 it also holds the probabilities and their gradients in 16 bits, and the 32-bit
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
        a16(reinterpret_cast<c10::BFloat16*>(values + product)),
        b16(a16 + scores) {}
  const int64_t scores, block, product;  // elements
  float *const a, *const b;              // scores: probabilities, and their gradients
  float* const rows;                     // a product for kRows tokens
  float *const keys, *const values;      // sums over all blocks of rows
  c10::BFloat16 *const a16, *const b16;  // 16-bit copies of a and b
};

template <typename T>
TRAINYARD_INLINE uint16_t* Bits(T* of) {
  return reinterpret_cast<uint16_t*>(of);
}
TRAINYARD_INLINE const uint16_t* Bits(const c10::BFloat16* of) { return reinterpret_cast<const uint16_t*>(of); }

// Writes e^(score - shift) for the first `valid` of `size` scores and 0 for the others. Returns their sum.
TRAINYARD_INLINE float Exponentials(float* scores, int64_t valid, int64_t size, float shift) {
  const Floats lowest = AllLanes(kMinExponent), masked = AllLanes(-std::numeric_limits<float>::infinity());
  const int64_t end = RoundUp(valid);
  for (int64_t i = valid; i < end; ++i) scores[i] = masked[0];
  Floats sum{};
  for (int64_t i = 0; i < end; i += kLanes) {
    const Floats score = LoadLanes(scores + i), exponent = score - shift;
    // Not a maximum, which would replace NaN by the lowest exponent.
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

TRAINYARD_INLINE float Dot(const float* x, const float* y, int64_t size) {
  Floats lanes{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) lanes += LoadLanes(x + i) * LoadLanes(y + i);
  float sum = SumAcrossLanes(lanes);
  for (; i < size; ++i) sum += x[i] * y[i];
  return sum;
}
TRAINYARD_INLINE float Dot(const c10::BFloat16* x, const c10::BFloat16* y, int64_t size) {
  const uint16_t *a = Bits(x), *b = Bits(y);
  Floats lanes{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) lanes += LoadLanes(a + i) * LoadLanes(b + i);
  float sum = SumAcrossLanes(lanes);
  for (; i < size; ++i) sum += Bfloat16ToFloat(a[i]) * Bfloat16ToFloat(b[i]);
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
TRAINYARD_INLINE void Store(const float* from, int64_t from_row, int64_t rows, int64_t depth, c10::BFloat16* to,
                            int64_t to_row) {
  for (int64_t i = 0; i < rows; ++i) ToBfloat16(from + i * from_row, Bits(to) + i * to_row, depth);
}

// Returns `size` scores in the type of the next product; for bf16 in `copy`.
TRAINYARD_INLINE const float* AsType(const float* scores, c10::BFloat16*, int64_t, const float*) { return scores; }
TRAINYARD_INLINE const c10::BFloat16* AsType(const float* scores, c10::BFloat16* copy, int64_t size,
                                             const c10::BFloat16*) {
  ToBfloat16(scores, Bits(copy), size);
  return copy;
}

template <typename T>
TRAINYARD_INLINE void Forward(const AttentionShape& s, const AttentionForward& head, void* memory) {
  const Scratch scratch(s, memory);
  const int64_t row = 3 * s.width;
  const T* q = static_cast<const T*>(head.qkv);
  const T *k = q + s.width, *v = k + s.width;
  T* out = static_cast<T*>(head.out);
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.depth)));
  for (int64_t first = 0; first < s.tokens; first += kRows) {
    const int64_t rows = std::min(kRows, s.tokens - first), columns = first + rows, stride = RoundUp(columns);
    Gemm(rows, columns, s.depth, scale, {q + first * row, row}, {k, row, true}, 0, scratch.a, stride);
    for (int64_t i = 0; i < rows; ++i)
      head.log_sums[first + i] = Softmax(scratch.a + i * stride, first + i + 1, stride);
    const T* probabilities = AsType(scratch.a, scratch.a16, rows * stride, q);
    if constexpr (std::is_same_v<T, float>) {
      Gemm(rows, s.depth, columns, 1, {probabilities, stride}, {v, row}, 0, out + first * s.width, s.width);
    } else {
      Gemm(rows, s.depth, columns, 1, {probabilities, stride}, {v, row}, 0, scratch.rows, s.depth);
      Store(scratch.rows, s.depth, rows, s.depth, out + first * s.width, s.width);
    }
  }
}

template <typename T>
TRAINYARD_INLINE void Backward(const AttentionShape& s, const AttentionBackward& head, void* memory) {
  constexpr bool kInPlace = std::is_same_v<T, float>;
  const Scratch scratch(s, memory);
  const int64_t row = 3 * s.width;
  const T* q = static_cast<const T*>(head.qkv);
  const T *k = q + s.width, *v = k + s.width;
  const T *out = static_cast<const T*>(head.out), *grad_out = static_cast<const T*>(head.grad_out);
  T* grad_q = static_cast<T*>(head.grad_qkv);
  T *grad_k = grad_q + s.width, *grad_v = grad_k + s.width;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.depth)));
  // Accumulators of products: keys and values get a contribution from every block of rows. The last block runs first,
  // because it contributes to all of them.
  float *sum_q = scratch.rows, *sum_k = scratch.keys, *sum_v = scratch.values;
  int64_t sum_row = s.depth;
  if constexpr (kInPlace) {
    sum_k = grad_k, sum_v = grad_v, sum_row = row;
  }
  const int64_t last = (s.tokens - 1) / kRows * kRows;
  for (int64_t first = last; first >= 0; first -= kRows) {
    const int64_t rows = std::min(kRows, s.tokens - first), columns = first + rows, stride = RoundUp(columns);
    const float beta = first == last ? 0 : 1;
    const T *q_rows = q + first * row, *grad_rows = grad_out + first * s.width;
    if constexpr (kInPlace) sum_q = grad_q + first * row;
    Gemm(rows, columns, s.depth, scale, {q_rows, row}, {k, row, true}, 0, scratch.a, stride);
    Gemm(rows, columns, s.depth, 1, {grad_rows, s.width}, {v, row, true}, 0, scratch.b, stride);
    for (int64_t i = 0; i < rows; ++i) {
      float *probabilities = scratch.a + i * stride, *gradients = scratch.b + i * stride;
      Exponentials(probabilities, first + i + 1, stride, head.log_sums[first + i]);
      for (int64_t j = columns; j < stride; ++j) gradients[j] = 0;  // no product has written them
      const float mean = Dot(out + (first + i) * s.width, grad_rows + i * s.width, s.depth);
      SoftmaxBackward(probabilities, gradients, columns, mean, scale);
    }
    const T* probabilities = AsType(scratch.a, scratch.a16, rows * stride, q);
    const T* gradients = AsType(scratch.b, scratch.b16, rows * stride, q);
    Gemm(rows, s.depth, columns, 1, {gradients, stride}, {k, row}, 0, sum_q, sum_row);
    Gemm(columns, s.depth, rows, 1, {gradients, stride, true}, {q_rows, row}, beta, sum_k, sum_row);
    Gemm(columns, s.depth, rows, 1, {probabilities, stride, true}, {grad_rows, s.width}, beta, sum_v, sum_row);
    if constexpr (!kInPlace) Store(sum_q, s.depth, rows, s.depth, grad_q + first * row, row);
  }
  if constexpr (!kInPlace) {
    Store(sum_k, s.depth, s.tokens, s.depth, grad_k, row);
    Store(sum_v, s.depth, s.tokens, s.depth, grad_v, row);
  }
}

template <typename Head>
TRAINYARD_INLINE void RunEither(const AttentionShape& shape, const Head& head, void* scratch) {
  if constexpr (std::is_same_v<Head, AttentionForward>) {
    head.type == at::kFloat ? Forward<float>(shape, head, scratch) : Forward<c10::BFloat16>(shape, head, scratch);
  } else {
    head.type == at::kFloat ? Backward<float>(shape, head, scratch) : Backward<c10::BFloat16>(shape, head, scratch);
  }
}

// The same function for three kinds of CPU.
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
  return 12 * scores + 4 * (kRows + 2 * RoundUp(shape.tokens)) * depth;  // two of scores in fp32, and two in bf16
}

void RunAttention(const AttentionShape& shape, const AttentionForward& head, void* scratch) {
  RunBest(shape, head, scratch);
}
void RunAttention(const AttentionShape& shape, const AttentionBackward& head, void* scratch) {
  RunBest(shape, head, scratch);
}

}  // namespace trainyard
