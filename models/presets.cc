#include "models/presets.h"

#include <vector>

namespace trainyard {
namespace {

// Small models for experiments: a step of lab-tiny takes milliseconds on one core, lab-10m has 10.8 million parameters,
// lab-60m 60 million.
constexpr ModelSizes kLabTiny = {.layers = 4, .heads = 4, .width = 128, .context = 64};
constexpr ModelSizes kLab10m = {.layers = 6, .heads = 6, .width = 384, .context = 256};
constexpr ModelSizes kLab60m = {.layers = 12, .heads = 10, .width = 640, .context = 1024};

ModelSizes Gpt2(int64_t layers, int64_t heads, int64_t width) {
  return {.layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257};
}

ModelSizes Llama2(int64_t layers, int64_t heads, int64_t kv_heads, int64_t width, int64_t inner) {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = layers,
                             .heads = heads,
                             .width = width,
                             .context = 4096,
                             .vocabulary = 32000,
                             .kv_heads = kv_heads,
                             .inner = inner,
                             .norm_eps = 1e-5,
                             .tied = false});
}

ModelSizes Llama3(int64_t layers, int64_t heads, int64_t width, int64_t inner) {
  ModelSizes sizes = Llama2(layers, heads, /*kv_heads=*/8, width, inner);
  sizes.context = 8192;
  sizes.vocabulary = 128256;
  sizes.rope.theta = 500000;
  return sizes;
}

// Llama 3.2, whose small models have tied heads and positions up to 131072.
ModelSizes SmallLlama32(int64_t layers, int64_t heads, int64_t width, int64_t inner) {
  ModelSizes sizes = Llama3(layers, heads, width, inner);
  sizes.context = 131072;
  sizes.tied = true;
  sizes.rope.scaling = Rope::Scaling::kLlama3;
  sizes.rope.factor = 32;
  sizes.rope.original_context = 8192;
  return sizes;
}

ModelSizes Mistral7b() {
  ModelSizes sizes = Llama2(32, 32, 8, 4096, 14336);
  sizes.family = ModelFamily::kMistral;
  sizes.context = 32768;
  sizes.window = 4096;
  return sizes;
}

ModelSizes Qwen25(int64_t layers, int64_t heads, int64_t kv_heads, int64_t width, int64_t inner) {
  ModelSizes sizes = Llama2(layers, heads, kv_heads, width, inner);
  sizes.family = ModelFamily::kQwen2;
  sizes.context = 32768;
  sizes.vocabulary = 151936;
  sizes.norm_eps = 1e-6;
  sizes.tied = true;
  sizes.attention_bias = AttentionBias::kQkv;
  sizes.rope.theta = 1e6;
  return sizes;
}

}  // namespace

absl::Span<const ModelPreset> ModelPresets() {
  static const auto* const presets = new std::vector<ModelPreset>{
      {.name = "lab-tiny", .sizes = kLabTiny},
      {.name = "lab-10m", .sizes = kLab10m},
      {.name = "lab-60m", .sizes = kLab60m},
      {.name = "gpt2", .sizes = Gpt2(12, 12, 768)},
      {.name = "gpt2-medium", .sizes = Gpt2(24, 16, 1024)},
      {.name = "gpt2-large", .sizes = Gpt2(36, 20, 1280)},
      {.name = "gpt2-xl", .sizes = Gpt2(48, 25, 1600)},
      {.name = "llama2-7b", .sizes = Llama2(32, 32, 32, 4096, 11008)},
      {.name = "llama2-13b", .sizes = Llama2(40, 40, 40, 5120, 13824)},
      {.name = "llama2-70b", .sizes = Llama2(80, 64, 8, 8192, 28672)},
      {.name = "llama3-8b", .sizes = Llama3(32, 32, 4096, 14336)},
      {.name = "llama3-70b", .sizes = Llama3(80, 64, 8192, 28672)},
      {.name = "llama3.2-1b", .sizes = SmallLlama32(16, 32, 2048, 8192)},
      {.name = "llama3.2-3b", .sizes = SmallLlama32(28, 24, 3072, 8192)},
      {.name = "mistral-7b", .sizes = Mistral7b()},
      {.name = "qwen2.5-0.5b", .sizes = Qwen25(24, 14, 2, 896, 4864)},
      {.name = "qwen2.5-1.5b", .sizes = Qwen25(28, 12, 2, 1536, 8960)},
  };
  return *presets;
}

}  // namespace trainyard
