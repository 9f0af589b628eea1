#include "models/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "models/presets.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = InitialValue::Kind;

constexpr ModelSizes kSmall = {.layers = 2, .heads = 2, .width = 4, .context = 8, .vocabulary = 32};

const ModelSizes kSmallLlama = CompleteLlamaSizes({.family = ModelFamily::kLlama,
                                                   .layers = 2,
                                                   .heads = 4,
                                                   .width = 16,
                                                   .context = 8,
                                                   .kv_heads = 2,
                                                   .tied = false,
                                                   .attention_bias = AttentionBias::kAll,
                                                   .mlp_bias = true});

// Formats a parameter as "name [shape] initial", with 0 for zeros, 1 for ones and ~ for random numbers.
std::string Text(const ParameterDescription& parameter) {
  std::string text = parameter.name + " [";
  for (int64_t size : parameter.shape) text += std::to_string(size) + " ";
  text.back() = ']';
  return text + (parameter.initial.kind == Kind::kZeros ? " 0" : parameter.initial.kind == Kind::kOnes ? " 1" : " ~");
}

std::vector<std::string> Texts(const std::vector<ParameterDescription>& parameters) {
  std::vector<std::string> texts;
  for (const ParameterDescription& parameter : parameters) texts.push_back(Text(parameter));
  return texts;
}

// Checkpoints, seeds and exported files depend on every line.
TEST(Gpt2Description, ParametersAreNumberedAsInEveryRelease) {
  ModelSizes one = kSmall;
  one.layers = 1;

  EXPECT_THAT(Texts(DescribeModel(one).parameters),
              ElementsAre("wte.weight [32 4] ~", "wpe.weight [8 4] ~", "ln_f.weight [4] 1", "ln_f.bias [4] 0",
                          "h.0.ln_1.weight [4] 1", "h.0.ln_1.bias [4] 0", "h.0.attn.c_attn.weight [4 12] ~",
                          "h.0.attn.c_attn.bias [12] 0", "h.0.attn.c_proj.weight [4 4] ~", "h.0.attn.c_proj.bias [4] 0",
                          "h.0.ln_2.weight [4] 1", "h.0.ln_2.bias [4] 0", "h.0.mlp.c_fc.weight [4 16] ~",
                          "h.0.mlp.c_fc.bias [16] 0", "h.0.mlp.c_proj.weight [16 4] ~", "h.0.mlp.c_proj.bias [4] 0"));
  for (const ParameterDescription& parameter : DescribeModel(one).parameters) {
    EXPECT_EQ(parameter.initial.deviation, parameter.initial.kind == Kind::kNormal ? 0.02 : 0) << parameter.name;
  }
}

TEST(Gpt2Description, UnitsAreTheRootAndTheBlocks) {
  EXPECT_THAT(DescribeModel(kSmall).units, ElementsAre(UnitDescription{"root", 0, 4}, UnitDescription{"h.0", 4, 12},
                                                       UnitDescription{"h.1", 16, 12}));
}

TEST(Gpt2Description, ExportOrderHasTheLastNormLast) {
  const ModelDescription model = DescribeModel(kSmall);

  const std::vector<ParameterDescription> ordered = model.ParametersInExportOrder();

  EXPECT_EQ(ordered[1].name, "wpe.weight");
  EXPECT_EQ(ordered[2].name, "h.0.ln_1.weight");
  EXPECT_EQ(ordered[14].name, "h.1.ln_1.weight");
  EXPECT_EQ(ordered[26].name, "ln_f.weight");
  EXPECT_EQ(ordered[27].name, "ln_f.bias");
  std::vector<int> sorted = model.export_order, all(model.parameters.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

// Checkpoints, seeds and exported files depend on every line.
TEST(LlamaDescription, ParametersAreNumberedAsInEveryRelease) {
  ModelSizes sizes = CompleteLlamaSizes({.family = ModelFamily::kQwen2,
                                         .layers = 1,
                                         .heads = 4,
                                         .width = 8,
                                         .context = 8,
                                         .vocabulary = 32,
                                         .kv_heads = 2,
                                         .inner = 12,
                                         .tied = false,
                                         .attention_bias = AttentionBias::kQkv});
  sizes.head_width = 6;  // heads x head_width is not width

  const ModelDescription model = DescribeModel(sizes);

  EXPECT_THAT(Texts(model.parameters),
              ElementsAre("embed_tokens.weight [32 8] ~", "norm.weight [8] 1", "lm_head.weight [32 8] ~",
                          "layers.0.input_layernorm.weight [8] 1", "layers.0.self_attn.q_proj.weight [24 8] ~",
                          "layers.0.self_attn.q_proj.bias [24] 0", "layers.0.self_attn.k_proj.weight [12 8] ~",
                          "layers.0.self_attn.k_proj.bias [12] 0", "layers.0.self_attn.v_proj.weight [12 8] ~",
                          "layers.0.self_attn.v_proj.bias [12] 0", "layers.0.self_attn.o_proj.weight [8 24] ~",
                          "layers.0.post_attention_layernorm.weight [8] 1", "layers.0.mlp.gate_proj.weight [12 8] ~",
                          "layers.0.mlp.up_proj.weight [12 8] ~", "layers.0.mlp.down_proj.weight [8 12] ~"));
  EXPECT_THAT(model.units, ElementsAre(UnitDescription{"root", 0, 3}, UnitDescription{"layers.0", 3, 12}));
  EXPECT_EQ(HuggingFaceName(model, "norm.weight"), "model.norm.weight");
  EXPECT_EQ(HuggingFaceName(model, "lm_head.weight"), "lm_head.weight");
}

TEST(LlamaDescription, ExportOrderHasTheLastNormAndTheHeadLast) {
  const ModelDescription model = DescribeModel(kSmallLlama);

  const std::vector<ParameterDescription> ordered = model.ParametersInExportOrder();

  EXPECT_EQ(ordered[0].name, "embed_tokens.weight");
  EXPECT_EQ(ordered[1].name, "layers.0.input_layernorm.weight");
  EXPECT_EQ(ordered[ordered.size() - 2].name, "norm.weight");
  EXPECT_EQ(ordered.back().name, "lm_head.weight");
  std::vector<int> sorted = model.export_order, all(model.parameters.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

TEST(CountParameters, EqualsTheSumOverTheDescription) {
  ModelSizes tied = kSmallLlama;
  tied.tied = true;
  tied.attention_bias = AttentionBias::kQkv;
  std::vector<ModelSizes> cases = {kSmall, kSmallLlama, tied};
  for (const ModelPreset& preset : ModelPresets()) cases.push_back(preset.sizes);
  for (const ModelSizes& sizes : cases) {
    uint64_t sum = 0;
    for (const ParameterDescription& parameter : DescribeModel(sizes).parameters) {
      sum += std::accumulate(parameter.shape.begin(), parameter.shape.end(), uint64_t{1}, std::multiplies<>());
    }
    EXPECT_EQ(CountParameters(sizes), sum) << SizesText(sizes);
  }
}

TEST(CheckSizes, RefusesImpossibleSizesWithTheNumbers) {
  ModelSizes odd = kSmall, empty = kSmall, dropped = kSmall;
  odd.heads = 3;
  empty.layers = 0;
  dropped.dropout = 1;

  EXPECT_TRUE(CheckSizes(kSmall).ok());
  EXPECT_THAT(std::string(CheckSizes(odd).message()), HasSubstr("4 / 3 leaves 1"));
  EXPECT_THAT(std::string(CheckSizes(empty).message()), HasSubstr("found layers 0"));
  EXPECT_THAT(std::string(CheckSizes(dropped).message()), HasSubstr("dropout must be in [0, 1), found 1"));
}

}  // namespace
}  // namespace trainyard
