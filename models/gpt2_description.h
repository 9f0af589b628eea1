// GPT-2: learned positions, pre-layer-norm blocks, GELU in its tanh form, biases, the head tied to the token embedding.
//
// Names and shapes are those of the files published for GPT-2 on the Hugging Face hub, so that they need no
// translation; matrices are [in, out] there. With d = width:
//
//   wte.weight [vocabulary, d]      wpe.weight [context, d]
//   ln_f.{weight,bias} [d]
//   h.N.ln_1.{weight,bias} [d]      h.N.attn.c_attn.{weight [d, 3d], bias}   h.N.attn.c_proj.{weight [d, d], bias}
//   h.N.ln_2.{weight,bias} [d]      h.N.mlp.c_fc.{weight [d, 4d], bias}      h.N.mlp.c_proj.{weight [4d, d], bias}
//
// Parameters are numbered in this order; exported files have ln_f last. Units: 0 is the root (wte, wpe, ln_f), N + 1 is
// block N. Matrices begin with values of a normal distribution, biases with 0, the norms' weights with 1.
#pragma once

#include "models/model_description.h"

namespace trainyard {

// REQUIRES: CheckSizes(sizes).
ModelDescription DescribeGpt2(const ModelSizes& sizes);

uint64_t CountGpt2Parameters(const ModelSizes& sizes);

}  // namespace trainyard
