// The Llama graph: RMS norms before both parts of a block, rotary positions, grouped-query attention, a gated
// perceptron with SiLU, and a head that may be the token embedding. Llama, Mistral and Qwen2 are this graph.
//
// Names and shapes are those of transformers, without the prefix "model."; matrices are [out, in] there. With
// d = width, q = heads x head_width, kv = kv_heads x head_width:
//
//   embed_tokens.weight [vocabulary, d]      norm.weight [d]      lm_head.weight [vocabulary, d], unless tied
//   layers.N.input_layernorm.weight [d]
//   layers.N.self_attn.q_proj.{weight [q, d], bias}    .k_proj.{weight [kv, d], bias}    .v_proj.{weight [kv, d], bias}
//   layers.N.self_attn.o_proj.{weight [d, q], bias}
//   layers.N.post_attention_layernorm.weight [d]
//   layers.N.mlp.gate_proj.{weight [inner, d], bias}   .up_proj.{weight [inner, d], bias}
//   layers.N.mlp.down_proj.{weight [d, inner], bias}
//
// ModelSizes determines which biases exist. Parameters are numbered in this order. Units: 0 is the root (embedding,
// last norm, head), N + 1 is block N.
#pragma once

#include "models/model_description.h"

namespace trainyard {

// REQUIRES: CheckSizes(sizes); IsLlamaGraph(sizes.family).
ModelDescription DescribeLlama(const ModelSizes& sizes);

uint64_t CountLlamaParameters(const ModelSizes& sizes);

}  // namespace trainyard
