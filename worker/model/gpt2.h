// GPT-2: learned positions, pre-layer-norm blocks, GELU in its tanh form, biases, the head tied to the token embedding.
//
// Names and shapes are those of the files published for GPT-2 on the Hugging Face hub, so that they need no
// translation; matrices are [in, out] there. With d = width:
//
//   wte.weight [vocabulary, d]      wpe.weight [context, d]
//   h.N.ln_1.{weight,bias} [d]      h.N.attn.c_attn.{weight [d, 3d], bias}   h.N.attn.c_proj.{weight [d, d], bias}
//   h.N.ln_2.{weight,bias} [d]      h.N.mlp.c_fc.{weight [d, 4d], bias}      h.N.mlp.c_proj.{weight [4d, d], bias}
//   ln_f.{weight,bias} [d]
//
// Units: 0 is the root (wte, wpe, ln_f), N + 1 is block N.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace trainyard {

struct Gpt2Config {
  int64_t layers = 0;
  int64_t heads = 0;  // must divide width
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocabulary = 256;
  double dropout = 0;  // after the embedding, in attention, after both projections
};

// Weights are drawn from a normal distribution of deviation 0.02, biases are 0, gains 1. The values depend on `seed`
// and the sizes alone; those of fp64 are those of fp32. Possible errors: InvalidArgument when a size is not positive,
// heads does not divide width, or dropout is not in [0, 1).
// `backed` false: the parameters have no memory yet (model.h).
absl::StatusOr<std::unique_ptr<Model>> NewGpt2(const Gpt2Config& config, uint64_t seed, at::ScalarType type,
                                               bool backed = true);

}  // namespace trainyard
