// Causal self-attention with the softmax of scores x 1 / sqrt(width of a head).
//
// On a CPU, in fp32, and in bf16 on most of them (HasGemm): own kernels. They go through 64 rows of scores at a time,
// which stay in the nearest cache, leave out what lies right of the diagonal, and read queries, keys and values where
// the projection has put them; backward computes the scores again and writes all three gradients where the projection's
// backward reads them. Everything else, and what drops, is LibTorch's.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// `qkv` is [sequences, tokens, 3 x width], a token's queries, keys and values one after another, each by heads; the
// result is [sequences, tokens, width], dense. Can be differentiated once. `drop`: share of the probabilities to be
// dropped, from the process' default generator. REQUIRES: heads divides width.
at::Tensor CausalAttention(const at::Tensor& qkv, int64_t heads, double drop);

// For tests.
enum class AttentionKernel { kLibTorch, kOwn };
at::Tensor CausalAttentionBy(AttentionKernel kernel, const at::Tensor& qkv, int64_t heads, double drop);

}  // namespace trainyard
