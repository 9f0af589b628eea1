#include "spec/model_sizes.h"

#include <algorithm>

#include "models/lora_targets.h"

namespace trainyard {
namespace {

ModelFamily FamilyOf(v1::ModelFamily family) {
  switch (family) {
    case v1::MODEL_FAMILY_LLAMA:
      return ModelFamily::kLlama;
    case v1::MODEL_FAMILY_MISTRAL:
      return ModelFamily::kMistral;
    case v1::MODEL_FAMILY_QWEN2:
      return ModelFamily::kQwen2;
    case v1::MODEL_FAMILY_MLP:
      return ModelFamily::kMlp;
    default:
      return ModelFamily::kGpt2;
  }
}

v1::ModelFamily FamilyOf(ModelFamily family) {
  switch (family) {
    case ModelFamily::kGpt2:
      return v1::MODEL_FAMILY_GPT2;
    case ModelFamily::kLlama:
      return v1::MODEL_FAMILY_LLAMA;
    case ModelFamily::kMistral:
      return v1::MODEL_FAMILY_MISTRAL;
    case ModelFamily::kQwen2:
      return v1::MODEL_FAMILY_QWEN2;
    case ModelFamily::kMlp:
      return v1::MODEL_FAMILY_MLP;
  }
  return v1::MODEL_FAMILY_UNSPECIFIED;
}

AttentionBias BiasOf(v1::AttentionBias bias) {
  if (bias == v1::ATTENTION_BIAS_QKV) return AttentionBias::kQkv;
  return bias == v1::ATTENTION_BIAS_ALL ? AttentionBias::kAll : AttentionBias::kNone;
}

v1::AttentionBias BiasOf(AttentionBias bias) {
  if (bias == AttentionBias::kQkv) return v1::ATTENTION_BIAS_QKV;
  return bias == AttentionBias::kAll ? v1::ATTENTION_BIAS_ALL : v1::ATTENTION_BIAS_NONE;
}

// A missing theta is 10000. Missing keys of the llama3 scaling have the values of Llama 3.1. The factor of linear
// scaling has no default.
Rope RopeOf(const v1::Rope& rope) {
  Rope out;
  if (rope.has_theta()) out.theta = rope.theta();
  if (rope.scaling() == v1::ROPE_SCALING_LINEAR) {
    out.scaling = Rope::Scaling::kLinear;
    out.factor = rope.factor();
  } else if (rope.scaling() == v1::ROPE_SCALING_LLAMA3) {
    out.scaling = Rope::Scaling::kLlama3;
    out.factor = rope.has_factor() ? rope.factor() : 8;
    out.low_frequency_factor = rope.has_low_frequency_factor() ? rope.low_frequency_factor() : 1;
    out.high_frequency_factor = rope.has_high_frequency_factor() ? rope.high_frequency_factor() : 4;
    out.original_context = rope.has_original_context() ? rope.original_context() : 8192;
  }
  return out;
}

void SetRope(const Rope& rope, v1::Rope& out) {
  out.set_theta(rope.theta);
  if (rope.scaling == Rope::Scaling::kNone) {
    out.set_scaling(v1::ROPE_SCALING_NONE);
    return;
  }
  out.set_factor(rope.factor);
  if (rope.scaling == Rope::Scaling::kLinear) {
    out.set_scaling(v1::ROPE_SCALING_LINEAR);
    return;
  }
  out.set_scaling(v1::ROPE_SCALING_LLAMA3);
  out.set_low_frequency_factor(rope.low_frequency_factor);
  out.set_high_frequency_factor(rope.high_frequency_factor);
  out.set_original_context(static_cast<uint32_t>(rope.original_context));
}

}  // namespace

ModelSizes SizesOfModel(const v1::Model& model) {
  ModelSizes sizes{.family = FamilyOf(model.family()),
                   .layers = model.layers(),
                   .heads = model.heads(),
                   .width = model.width(),
                   .context = model.context(),
                   .dropout = model.dropout()};
  if (model.has_vocabulary()) sizes.vocabulary = model.vocabulary();
  if (!IsLlamaGraph(sizes.family) || sizes.heads < 1) return sizes;
  sizes.kv_heads = model.kv_heads();
  sizes.head_width = model.head_width();
  sizes.inner = model.inner();
  sizes.norm_eps = model.norm_eps();
  sizes.tied = model.tied();
  sizes.mlp_bias = model.mlp_bias();
  sizes.window = model.window();
  sizes.rope = RopeOf(model.rope());
  sizes = CompleteLlamaSizes(sizes);
  if (model.has_attention_bias()) sizes.attention_bias = BiasOf(model.attention_bias());
  return sizes;
}

ModelSizes SizesOf(const v1::Train& train) {
  ModelSizes sizes = SizesOfModel(train.model());
  const v1::Lora& lora = train.lora();
  if (lora.rank() == 0) return sizes;
  sizes.lora = {.rank = lora.rank(),
                .alpha = lora.has_alpha() ? lora.alpha() : lora.rank(),
                .dropout = lora.dropout(),
                .targets = {lora.targets().begin(), lora.targets().end()}};
  if (sizes.lora.targets.empty()) sizes.lora.targets = DefaultLoraTargets(sizes.family);
  return sizes;
}

void SetModelSizes(const ModelSizes& sizes, v1::Model& model) {
  model.set_family(FamilyOf(sizes.family));
  model.set_layers(static_cast<uint32_t>(sizes.layers));
  model.set_heads(static_cast<uint32_t>(sizes.heads));
  model.set_width(static_cast<uint32_t>(sizes.width));
  model.set_context(static_cast<uint32_t>(sizes.context));
  model.set_vocabulary(static_cast<uint32_t>(sizes.vocabulary));
  model.set_dropout(sizes.dropout);
  if (!IsLlamaGraph(sizes.family)) return;
  model.set_kv_heads(static_cast<uint32_t>(sizes.kv_heads));
  model.set_head_width(static_cast<uint32_t>(sizes.head_width));
  model.set_inner(static_cast<uint32_t>(sizes.inner));
  model.set_norm_eps(sizes.norm_eps);
  model.set_tied(sizes.tied);
  model.set_attention_bias(BiasOf(sizes.attention_bias));
  model.set_mlp_bias(sizes.mlp_bias);
  model.set_window(static_cast<uint32_t>(sizes.window));
  SetRope(sizes.rope, *model.mutable_rope());
}

int64_t DecidedLength(const v1::Train& train) {
  const int64_t length = SequenceLength(train);
  const bool published = train.model().has_preset() || train.model().has_config();
  return train.batch().has_length() || !published ? length : std::min(length, kAutoLengthMax);
}

int64_t SequenceLength(const v1::Train& train) {
  return train.batch().has_length() ? train.batch().length() : train.model().context();
}

}  // namespace trainyard
