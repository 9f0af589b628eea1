// Causal self-attention with the softmax of scores x 1 / sqrt(width of a head).
//
// On a CPU, in fp32, and in bf16 on most CPUs (HasGemm), our own kernels are used. They process 64 rows of scores at a
// time, which fit the first-level cache, skip the part right of the diagonal, and read queries, keys and values where
// the projection has written them. Backward recomputes the scores and writes all three gradients where the projection's
// backward reads them. All other cases, and all with dropout, use LibTorch.
//
// Documents in a sequence: `starts`, int64 [sequences, tokens], holds for each token the position of the first token
// of its document, to which and to those after it the token attends. It is undefined if sequences are not divided.
// LibTorch gets it as a mask of tokens x tokens elements per sequence.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// `qkv` is [sequences, tokens, 3 x width]: a token's queries, keys and values one after another, each ordered by heads.
// Returns a dense tensor [sequences, tokens, width], which can be differentiated once. `drop`: the fraction of the
// probabilities to drop, using the process's default generator. REQUIRES: heads divides width.
at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, double drop, const at::Tensor& starts = {});

// Attention in which groups of heads / kv_heads heads of queries share one head of keys and values. `q` is [sequences,
// tokens, heads x depth], `k` and `v` are [sequences, tokens, kv_heads x depth], each ordered by heads. Returns a dense
// tensor of q's shape, which can be differentiated once. REQUIRES: kv_heads divides heads.
at::Tensor GroupedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                            int64_t kv_heads, const at::Tensor& starts = {});

// For tests.
enum class AttentionKernel { kLibTorch, kOwn };
at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, double drop,
                             const at::Tensor& starts = {});
at::Tensor GroupedAttentionBy(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              int64_t heads, int64_t kv_heads, const at::Tensor& starts = {});

}  // namespace trainyard
