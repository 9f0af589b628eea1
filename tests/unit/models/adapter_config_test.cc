#include "models/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/lora_targets.h"

namespace trainyard {
namespace {

// The adapter_config.json that PEFT writes for a Llama.
nlohmann::json PeftConfig() {
  return {{"alora_invocation_tokens", nullptr},
          {"alpha_pattern", nlohmann::json::object()},
          {"arrow_config", nullptr},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", "some/model"},
          {"bias", "none"},
          {"corda_config", nullptr},
          {"ensure_weight_tying", false},
          {"eva_config", nullptr},
          {"exclude_modules", nullptr},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform", nullptr},
          {"loftq_config", nlohmann::json::object()},
          {"lora_alpha", 16},
          {"lora_bias", false},
          {"lora_dropout", 0.05},
          {"megatron_config", nullptr},
          {"megatron_core", "megatron.core"},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"peft_version", "0.18.0"},
          {"qalora_group_size", 16},
          {"r", 4},
          {"rank_pattern", nlohmann::json::object()},
          {"revision", nullptr},
          {"target_modules", {"v_proj", "q_proj"}},
          {"target_parameters", nullptr},
          {"task_type", "CAUSAL_LM"},
          {"trainable_token_indices", nullptr},
          {"use_dora", false},
          {"use_qalora", false},
          {"use_rslora", false}};
}

absl::StatusOr<LoraSettings> Parse(const nlohmann::json& config, ModelFamily family = ModelFamily::kLlama) {
  return ParseAdapterConfig(config.dump(), "a.json", family);
}

TEST(AdapterConfig, OfPeft_IsRead) {
  auto lora = Parse(PeftConfig());

  ASSERT_TRUE(lora.ok()) << lora.status();
  EXPECT_EQ(*lora, (LoraSettings{.rank = 4, .alpha = 16, .dropout = 0.05, .targets = {"q_proj", "v_proj"}}));
}

TEST(AdapterConfig, MissingKeysHaveTheValuesOfPeft) {
  const nlohmann::json config = {{"peft_type", "LORA"}};

  auto gpt2 = Parse(config, ModelFamily::kGpt2), qwen2 = Parse(config, ModelFamily::kQwen2);

  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(*gpt2, (LoraSettings{.rank = 8, .alpha = 8, .targets = {"c_attn"}}));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->targets, (std::vector<std::string>{"q_proj", "v_proj"}));
}

TEST(AdapterConfig, RankStabilised_BecomesAnAlphaWithTheSameFactor) {
  nlohmann::json config = PeftConfig();
  config["use_rslora"] = true;

  auto lora = Parse(config);

  ASSERT_TRUE(lora.ok()) << lora.status();
  EXPECT_DOUBLE_EQ(lora->alpha / 4, 16 / std::sqrt(4));
}

TEST(AdapterConfig, AllLinear_IsEveryProjection) {
  nlohmann::json config = PeftConfig();
  config["target_modules"] = "all-linear";

  EXPECT_EQ(Parse(config)->targets, std::vector<std::string>{"*"});
}

TEST(AdapterConfig, EveryUnsupportedSettingIsListed) {
  nlohmann::json config = PeftConfig();
  config["use_dora"] = true;
  config["modules_to_save"] = {"lm_head"};
  config["bias"] = "all";
  config["rank_pattern"] = {{"q_proj", 8}};
  config["alpha_pattern"] = {{"q_proj", 8}};
  config["fan_in_fan_out"] = true;
  config["target_modules"] = ".*proj";
  config["init_lora_weights"] = "pissa_niter_4";
  config["a_later_feature"] = 7;
  config["r"] = -1;
  config["peft_type"] = "IA3";

  const absl::Status status = Parse(config).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  for (const char* part :
       {"a.json describes an adapter that cannot be trained here: peft_type: expected \"LORA\", found \"IA3\"",
        "bias: expected \"none\", found \"all\"", "fan_in_fan_out: expected false, because matrices of llama are",
        "r: expected a positive whole number, found -1",
        "target_modules: expected a list of names of modules (a regular expression is not supported), found \".*proj\"",
        "use_dora: expected no value, because it is not supported, found true",
        "modules_to_save: expected no value, because it is not supported, found [\"lm_head\"]", "rank_pattern: ",
        "alpha_pattern: ", "init_lora_weights: expected an initialisation that leaves", "a_later_feature: "}) {
    EXPECT_THAT(message, testing::HasSubstr(part));
  }
}

TEST(AdapterConfig, TextThatIsNoObject_IsRefused) {
  EXPECT_EQ(ParseAdapterConfig("[1]", "a.json", ModelFamily::kGpt2).status().message(), "a.json is not a JSON object");
  EXPECT_EQ(ParseAdapterConfig("{", "a.json", ModelFamily::kGpt2).status().message(), "a.json is not a JSON object");
  const std::string deep = "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}";
  EXPECT_EQ(ParseAdapterConfig(deep, "a.json", ModelFamily::kGpt2).status().message(),
            "a.json has more than 32 levels of nested objects and lists");
}

TEST(AdapterConfig, WrittenText_IsReadAgain) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    ModelSizes sizes{.family = family, .layers = 2, .heads = 2, .width = 4, .context = 8};
    if (IsLlamaGraph(family)) sizes = CompleteLlamaSizes(sizes);
    sizes.lora = {.rank = 2, .alpha = 5.5, .dropout = 0.1, .targets = DefaultLoraTargets(family)};

    auto read = ParseAdapterConfig(AdapterConfigText(DescribeModel(sizes), "base"), "a.json", family);

    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, sizes.lora);
  }
}

TEST(AdapterConfig, GlobsAreWrittenAsWholeNames) {
  ModelSizes sizes{.layers = 2, .heads = 2, .width = 4, .context = 8};
  sizes.lora = {.rank = 2, .alpha = 4, .targets = {"h.1.mlp.*"}};

  const auto json = nlohmann::json::parse(AdapterConfigText(DescribeModel(sizes), ""));

  EXPECT_EQ(json["target_modules"], (nlohmann::json{"transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj"}));
  EXPECT_TRUE(json["base_model_name_or_path"].is_null());
  EXPECT_EQ(json["lora_alpha"].dump(), "4");
  EXPECT_EQ(json["fan_in_fan_out"], true);
}

}  // namespace
}  // namespace trainyard
