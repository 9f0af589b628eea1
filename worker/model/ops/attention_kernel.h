// Attention in one sequence, for one head of keys and values and the heads of queries that use it, in raw memory; see
// attention.h. Scores and sums are fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trainyard {

struct AttentionShape {
  int64_t tokens = 0;
  int64_t depth = 0;  // width of one head
  int64_t group = 1;  // heads of queries that share the head of keys and values
  // Elements from one token to the next.
  int64_t query_row = 0;  // of queries and their gradients
  int64_t key_row = 0;    // of keys, values and their gradients
  int64_t out_row = 0;    // of the result and its gradient
  // For each token of the sequence, the first token of its document, which is the first one that it attends to; null:
  // the sequence is one document. The values never decrease from one token to the next.
  const int64_t* starts = nullptr;
};

// The element type is fp32, bf16 or fp16. All pointers point to the head's part of the first token. Those to queries
// and results point to the group's first head, which the group's other heads follow. `log_sums` has one element per
// token and head, ordered by heads.
struct AttentionForward {
  at::ScalarType type = at::kFloat;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* log_sums = nullptr;  // logarithms of the sums of the exponentials of each token's scores
};
// The gradients of the group are overwritten completely.
struct AttentionBackward {
  at::ScalarType type = at::kFloat;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const void* out = nullptr;
  const float* log_sums = nullptr;
  const void* grad_out = nullptr;
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
};

// The number of bytes of `scratch` that RunAttention needs. It is fastest if `scratch` is aligned to 64 bytes.
int64_t AttentionScratchBytes(const AttentionShape& shape);

void RunAttention(const AttentionShape& shape, const AttentionForward& head, void* scratch);
void RunAttention(const AttentionShape& shape, const AttentionBackward& head, void* scratch);

}  // namespace trainyard
