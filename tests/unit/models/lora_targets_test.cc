#include "models/lora_targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/model_description.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModelSizes Gpt2With(std::vector<std::string> targets) {
  return {.layers = 12,
          .heads = 2,
          .width = 4,
          .context = 8,
          .vocabulary = 32,
          .lora = {.rank = 3, .alpha = 6, .targets = std::move(targets)}};
}

ModelSizes LlamaWith(std::vector<std::string> targets) {
  ModelSizes sizes = CompleteLlamaSizes(
      {.family = ModelFamily::kLlama, .layers = 2, .heads = 4, .width = 16, .context = 8, .kv_heads = 2, .inner = 20});
  sizes.lora = {.rank = 3, .alpha = 6, .targets = std::move(targets)};
  return sizes;
}

std::vector<std::string> AdaptedProjections(const ModelSizes& sizes) {
  std::vector<std::string> names;
  for (const ProjectionDescription& projection : DescribeModel(sizes).projections) {
    if (projection.lora_a >= 0) names.push_back(projection.name);
  }
  return names;
}

TEST(LoraTargets, MatchTheEndOfANameAfterADot_TheWholeName_OrAGlob) {
  const auto matches = [](const char* target) {
    return TargetMatcher({"other", target}, /*prefix=*/"transformer.").Matches("h.1.attn.c_attn");
  };
  for (const char* target : {"c_attn", "attn.c_attn", "h.1.attn.c_attn", "1.attn.c_attn", "transformer.h.1.attn.c_attn",
                             "h.*.attn.*", "*", "h.[01].*", "transformer.h.1.*"}) {
    EXPECT_TRUE(matches(target)) << target;
  }
  for (const char* target : {"attn", "_attn", "c_attn.weight", "", ".c_attn", "h.1", "h.2.*", "c_att?", "H.1.*"}) {
    EXPECT_FALSE(matches(target)) << target;
  }
}

TEST(LoraTargets, NumberOfALayer_DoesNotMatchTheEndOfAnotherNumber) {
  EXPECT_THAT(AdaptedProjections(Gpt2With({"1.attn.c_attn"})), ElementsAre("h.1.attn.c_attn"));
}

TEST(LoraTargets, OneEndCanMatchSeveralProjections) {
  ModelSizes sizes = Gpt2With({"c_proj"});
  sizes.layers = 1;

  EXPECT_THAT(AdaptedProjections(sizes), ElementsAre("h.0.attn.c_proj", "h.0.mlp.c_proj"));
}

TEST(LoraTargets, UnmatchedOnesAreFound) {
  EXPECT_THAT(UnmatchedTargets(Gpt2With({"c_attn", "q_proj", "h.12.*", "h.11.*"})), ElementsAre("q_proj", "h.12.*"));
  EXPECT_THAT(UnmatchedTargets(LlamaWith({"q_proj", "mlp.*", "*.mlp.*"})), ElementsAre("mlp.*"));
  EXPECT_THAT(UnmatchedTargets(LlamaWith(DefaultLoraTargets(ModelFamily::kLlama))), IsEmpty());
  EXPECT_THAT(UnmatchedTargets(Gpt2With(DefaultLoraTargets(ModelFamily::kGpt2))), IsEmpty());
}

// PEFT writes the targets of "all-linear" as whole names of every block.
TEST(LoraTargets, WholeNamesOfEveryBlock_HaveAShortForm) {
  ModelSizes sizes = LlamaWith({});
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    for (const char* name : {"self_attn.v_proj", "mlp.up_proj", "self_attn.q_proj"}) {
      sizes.lora.targets.push_back(absl::StrCat("model.layers.", layer, ".", name));
    }
  }
  ModelSizes without_one = sizes;
  without_one.lora.targets.pop_back();

  EXPECT_THAT(ShortTargets(sizes), ElementsAre("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"));
  EXPECT_EQ(ShortTargets(without_one), without_one.lora.targets);
  EXPECT_THAT(ShortTargets(LlamaWith({"v_proj", "q_proj"})), ElementsAre("v_proj", "q_proj"));
  EXPECT_THAT(ShortTargets(LlamaWith({"nothing"})), ElementsAre("nothing"));
}

TEST(LoraTargets, ProjectionNamesAreTheEndsWithoutTheLayer) {
  EXPECT_THAT(ProjectionNames(Gpt2With({})), ElementsAre("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"));
  EXPECT_THAT(ProjectionNames(LlamaWith({})),
              ElementsAre("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"));
}

// Checkpoints and seeds depend on the order.
TEST(LoraParameters, FollowTheOthersOfTheirBlock_WithTheShapesOfPeft) {
  ModelSizes sizes = Gpt2With({"h.0.attn.c_attn", "h.*.mlp.c_fc"});
  sizes.layers = 2;

  const ModelDescription model = DescribeModel(sizes);

  EXPECT_THAT(model.units, ElementsAre(UnitDescription{"root", 0, 4}, UnitDescription{"h.0", 4, 16},
                                       UnitDescription{"h.1", 20, 14}));
  const auto is = [&](int i, const char* name, std::vector<int64_t> shape, InitialValue initial) {
    EXPECT_EQ(model.parameters[static_cast<size_t>(i)],
              (ParameterDescription{.name = name, .shape = std::move(shape), .initial = initial}));
  };
  is(16, "h.0.attn.c_attn.lora_A.weight", {3, 4}, {.kind = InitialValue::Kind::kUniform, .bound = 0.5});
  is(17, "h.0.attn.c_attn.lora_B.weight", {12, 3}, {});
  is(18, "h.0.mlp.c_fc.lora_A.weight", {3, 4}, {.kind = InitialValue::Kind::kUniform, .bound = 0.5});
  is(19, "h.0.mlp.c_fc.lora_B.weight", {16, 3}, {});
  is(33, "h.1.mlp.c_fc.lora_B.weight", {16, 3}, {});
  EXPECT_EQ(
      model.projections[2],
      (ProjectionDescription{.name = "h.0.mlp.c_fc", .in = 4, .out = 16, .weight = 12, .lora_a = 18, .lora_b = 19}));
  EXPECT_EQ(model.projections[4].lora_a, -1);
  EXPECT_TRUE(IsAdapterName(model.parameters[16].name));
  EXPECT_FALSE(IsAdapterName(model.parameters[15].name));
}

TEST(LoraParameters, ProjectionsKnowTheLayoutOfTheirMatrix) {
  for (const ModelSizes& sizes : {Gpt2With({"*"}), LlamaWith({"*"})}) {
    const ModelDescription model = DescribeModel(sizes);
    for (const ProjectionDescription& projection : model.projections) {
      const ParameterDescription& weight = model.parameters[static_cast<size_t>(projection.weight)];
      EXPECT_EQ(weight.name, projection.name + ".weight");
      EXPECT_EQ(weight.shape, projection.transposed ? (std::vector<int64_t>{projection.out, projection.in})
                                                    : (std::vector<int64_t>{projection.in, projection.out}));
    }
  }
}

TEST(LoraParameters, AreCounted) {
  for (const ModelSizes& sizes :
       {Gpt2With({"c_attn"}), Gpt2With({"h.1*", "c_fc"}), LlamaWith({"*"}), LlamaWith({"q_proj", "q_proj"})}) {
    uint64_t sum = 0;
    for (const ParameterDescription& parameter : DescribeModel(sizes).parameters) {
      sum += std::accumulate(parameter.shape.begin(), parameter.shape.end(), uint64_t{1},
                             [](uint64_t a, int64_t b) { return a * static_cast<uint64_t>(b); });
    }
    EXPECT_EQ(CountParameters(sizes), sum) << SizesText(sizes);
    EXPECT_EQ(CountParameters(sizes) - CountParameters(BaseSizes(sizes)), CountAdapterParameters(sizes));
    EXPECT_GT(CountAdapterParameters(sizes), 0u);
  }
}

TEST(LoraParameters, ExportOrderContainsEachOnce) {
  for (const ModelSizes& sizes : {Gpt2With({"*"}), LlamaWith({"*"})}) {
    const ModelDescription model = DescribeModel(sizes);
    std::vector<int> sorted = model.export_order, all(model.parameters.size());
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
  }
}

TEST(LoraSettings, BadOnesAreListed) {
  ModelSizes sizes = Gpt2With({});
  sizes.lora.alpha = -1;
  sizes.lora.dropout = 1;

  EXPECT_EQ(CheckSizes(sizes).message(),
            "a gpt2 model: lora.alpha must be above 0, found -1; lora.dropout must be in [0, 1), found 1; adapters "
            "have no targets");
  EXPECT_TRUE(CheckSizes(BaseSizes(sizes)).ok());
}

}  // namespace
}  // namespace trainyard
