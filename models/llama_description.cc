#include "models/llama_description.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/description_builder.h"

namespace trainyard {
namespace {

// A projection from `in` to `out`, whose matrix is stored as [out, in]. Tensor ranks divide its outputs in multiples of
// `granule`.
void AddColumnProjection(DescriptionBuilder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
                         int64_t granule) {
  builder.AddProjection(name, in, out, /*transposed=*/true);
  builder.Split({.dimension = 0, .granule = granule});
  if (!bias) return;
  builder.AddZeros(name + ".bias", out);
  builder.Split({.dimension = 0, .granule = granule});
}

// The same, but tensor ranks divide the inputs, and each has the whole bias.
void AddRowProjection(DescriptionBuilder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
                      int64_t granule) {
  builder.AddProjection(name, in, out, /*transposed=*/true);
  builder.Split({.dimension = 1, .granule = granule});
  if (bias) builder.AddZeros(name + ".bias", out);
}

void AddBlock(DescriptionBuilder& builder, const std::string& name, const ModelSizes& sizes) {
  const int64_t d = sizes.width, q = sizes.heads * sizes.head_width, kv = sizes.kv_heads * sizes.head_width;
  const bool qkv_bias = sizes.attention_bias != AttentionBias::kNone;
  builder.AddOnes(name + ".input_layernorm.weight", d);
  const int64_t head = sizes.head_width;
  AddColumnProjection(builder, name + ".self_attn.q_proj", d, q, qkv_bias, head);
  AddColumnProjection(builder, name + ".self_attn.k_proj", d, kv, qkv_bias, head);
  AddColumnProjection(builder, name + ".self_attn.v_proj", d, kv, qkv_bias, head);
  AddRowProjection(builder, name + ".self_attn.o_proj", q, d, sizes.attention_bias == AttentionBias::kAll, head);
  builder.AddOnes(name + ".post_attention_layernorm.weight", d);
  AddColumnProjection(builder, name + ".mlp.gate_proj", d, sizes.inner, sizes.mlp_bias, /*granule=*/1);
  AddColumnProjection(builder, name + ".mlp.up_proj", d, sizes.inner, sizes.mlp_bias, /*granule=*/1);
  AddRowProjection(builder, name + ".mlp.down_proj", sizes.inner, d, sizes.mlp_bias, /*granule=*/1);
}

// The order in which the library transformers writes the parameters: embedding, blocks, last norm, head. In `model`,
// the parameters of the root (embedding, norm, head) precede those of the blocks.
std::vector<int> LlamaExportOrder(const ModelDescription& model) {
  const int root = model.units[0].num_parameters;
  std::vector<int> order(model.parameters.size());
  std::iota(order.begin() + 1, order.end() - (root - 1), root);
  std::iota(order.end() - (root - 1), order.end(), 1);
  return order;
}

}  // namespace

ModelDescription DescribeLlama(const ModelSizes& sizes) {
  // Files of old versions of transformers contain the rotary frequencies in addition to the weights.
  DescriptionBuilder builder(sizes, {.prefix = "model.",
                                     .embedding = "embed_tokens.weight",
                                     .head = "lm_head.weight",
                                     .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}});
  builder.BeginUnit("root");
  builder.AddMatrix("embed_tokens.weight", sizes.vocabulary, sizes.width);
  builder.UsedBy(sizes.tied ? RootUse::kBoth : RootUse::kEmbedding);
  builder.Split({.dimension = 0});
  builder.AddOnes("norm.weight", sizes.width);
  if (!sizes.tied) {
    builder.AddMatrix("lm_head.weight", sizes.vocabulary, sizes.width);
    builder.Split({.dimension = 0});
  }
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string name = absl::StrCat("layers.", layer);
    builder.BeginUnit(name);
    AddBlock(builder, name, sizes);
    builder.EndUnit();
  }
  ModelDescription model = builder.TakeModel();
  model.export_order = LlamaExportOrder(model);
  return model;
}

uint64_t CountLlamaParameters(const ModelSizes& sizes) {
  const auto size = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t d = size(sizes.width), inner = size(sizes.inner);
  const uint64_t q = size(sizes.heads) * size(sizes.head_width), kv = size(sizes.kv_heads) * size(sizes.head_width);
  uint64_t block = 2 * d + 2 * q * d + 2 * kv * d + 3 * inner * d;
  if (sizes.attention_bias != AttentionBias::kNone) block += q + 2 * kv;
  if (sizes.attention_bias == AttentionBias::kAll) block += d;
  if (sizes.mlp_bias) block += 2 * inner + d;
  return size(sizes.vocabulary) * d * (sizes.tied ? 1 : 2) + d + size(sizes.layers) * block;
}

}  // namespace trainyard
