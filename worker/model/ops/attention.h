// Causal self-attention with the softmax of scores x 1 / sqrt(width of a head).
//
// On a CPU, in fp32, and in bf16 on most CPUs (HasGemm), our own kernels are used. They process 64 rows of scores at a
// time, which fit the first-level cache, skip the part right of the diagonal, and read queries, keys and values where
// the projection has written them. Backward recomputes the scores and writes all three gradients where the projection's
// backward reads them. All other cases, and all with dropout, use LibTorch.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// `qkv` is [sequences, tokens, 3 x width]: a token's queries, keys and values one after another, each ordered by heads.
// Returns a dense tensor [sequences, tokens, width], which can be differentiated once. `drop`: the fraction of the
// probabilities to drop, using the process's default generator. REQUIRES: heads divides width.
at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, double drop);

// For tests.
enum class AttentionKernel { kLibTorch, kOwn };
at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, double drop);

}  // namespace trainyard
