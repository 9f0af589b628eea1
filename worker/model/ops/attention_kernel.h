// Attention of one head of one sequence, in raw memory; see attention.h. Scores and sums are fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trainyard {

struct AttentionShape {
  int64_t tokens = 0;
  int64_t depth = 0;  // width of one head
  int64_t width = 0;  // of all heads: elements between two tokens of the result, and a third of those of qkv
};

// The element type is fp32 or bf16. `qkv` and `out` point to the head's part of the first token; `log_sums` has one
// element per token.
struct AttentionForward {
  at::ScalarType type = at::kFloat;
  const void* qkv = nullptr;
  void* out = nullptr;
  float* log_sums = nullptr;  // logarithms of the sums of the exponentials of each token's scores
};
struct AttentionBackward {
  at::ScalarType type = at::kFloat;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const float* log_sums = nullptr;
  const void* grad_out = nullptr;
  void* grad_qkv = nullptr;  // the head's part is overwritten completely
};

// Bytes of working memory for one head, aligned to 64.
int64_t AttentionScratchBytes(const AttentionShape& shape);

void RunAttention(const AttentionShape& shape, const AttentionForward& head, void* scratch);
void RunAttention(const AttentionShape& shape, const AttentionBackward& head, void* scratch);

}  // namespace trainyard
