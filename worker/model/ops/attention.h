// Causal self-attention with the softmax of scores x 1 / sqrt(width of a head).
//
// On CPUs, our own kernels are used without dropout in fp32 and, on many CPUs (HasGemm), in bf16 or fp16. They process
// 64 rows of scores at a time (these fit a core's caches), skip the part right of the diagonal, and read queries, keys
// and values where the projection has written them. Backward recomputes the scores and writes all three gradients where
// the backward of the projection reads them. All other cases use operations of LibTorch; with dropout, these store the
// probabilities of all pairs of tokens.
//
// Documents in a sequence: `starts`, int64 [sequences, tokens], holds for each token the position of the first token
// of its document. A token attends to the tokens from that position to its own. `starts` is undefined if sequences
// are not divided into documents. LibTorch gets `starts` as a mask of tokens x tokens elements per sequence.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/dropout.h"

namespace trainyard {

// Dropout of the probabilities.
struct AttentionDropout {
  UnitDropout dropout = {};
  int64_t first_head = 0;  // the index in the whole model of this rank's head 0
};

// `qkv` is [sequences, tokens, 3 x width]: a token's queries, keys and values one after another, each ordered by heads.
// Returns a dense tensor [sequences, tokens, width], which can be differentiated once. REQUIRES: heads divides width.
at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, const AttentionDropout& drop = {},
                           const at::Tensor& starts = {});

// Attention in which groups of heads / kv_heads heads of queries share one head of keys and values. `q` is [sequences,
// tokens, heads x depth], `k` and `v` are [sequences, tokens, kv_heads x depth], each ordered by heads. Returns a dense
// tensor of q's shape, which can be differentiated once. REQUIRES: kv_heads divides heads.
at::Tensor GroupedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                            int64_t kv_heads, const at::Tensor& starts = {});

// These functions let tests choose the kernel.
enum class AttentionKernel { kLibTorch, kOwn };
at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads,
                             const AttentionDropout& drop = {}, const at::Tensor& starts = {});
at::Tensor GroupedAttentionBy(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              int64_t heads, int64_t kv_heads, const at::Tensor& starts = {});

}  // namespace trainyard
