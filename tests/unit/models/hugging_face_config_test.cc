// Reads and writes the config.json of transformers. tests/interop/transformers_test.py checks that this library agrees.
#include "models/hugging_face_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModelSizes kSizes = {.layers = 2, .heads = 2, .width = 4, .context = 8, .vocabulary = 50257, .dropout = 0.25};

std::string Refusal(const char* key, const nlohmann::json& value) {
  nlohmann::json config = nlohmann::json::parse(HuggingFaceConfig(kSizes, "F32"));
  config[key] = value;
  return std::string(ParseHuggingFaceConfig(config.dump(), "x/config.json").status().message());
}

TEST(HuggingFaceConfig, RoundTrips) {
  for (const char* dtype : {"F32", "BF16"}) {
    auto parsed = ParseHuggingFaceConfig(HuggingFaceConfig(kSizes, dtype), "config.json");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, kSizes);
  }
}

TEST(HuggingFaceConfig, NamesTheTypeAsTorchDoes) {
  auto type = [](const char* dtype) { return nlohmann::json::parse(HuggingFaceConfig(kSizes, dtype))["dtype"]; };
  EXPECT_EQ(type("F64"), "float64");
  EXPECT_EQ(type("F32"), "float32");
  EXPECT_EQ(type("F16"), "float16");
  EXPECT_EQ(type("BF16"), "bfloat16");
}

TEST(HuggingFaceConfig, MissingDropoutIsTheDefaultOfTheLibrary) {
  nlohmann::json config = nlohmann::json::parse(HuggingFaceConfig(kSizes, "F32"));
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) config.erase(key);
  auto sizes = ParseHuggingFaceConfig(config.dump(), "config.json");
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->dropout, 0.1);
}

TEST(HuggingFaceConfig, EverySettingThatCannotBeTrainedIsRefused) {
  EXPECT_THAT(Refusal("model_type", "bloom"),
              AllOf(HasSubstr("x/config.json"),
                    HasSubstr("expected one of \"gpt2\", \"llama\", \"mistral\", \"qwen2\", found \"bloom\"")));
  EXPECT_THAT(Refusal("model_type", "qwen3"), HasSubstr("(the nearest is \"qwen2\", but its architecture may differ)"));
  EXPECT_THAT(Refusal("tie_word_embeddings", false), HasSubstr("tie_word_embeddings: expected true, found false"));
  EXPECT_THAT(Refusal("n_inner", 99), HasSubstr("n_inner: expected 16, found 99"));
  EXPECT_THAT(Refusal("n_layer", "two"), HasSubstr("n_layer: expected a positive whole number, found \"two\""));
  EXPECT_THAT(Refusal("n_layer", 1'000'000'000), HasSubstr("n_layer: expected at most 1024, found 1000000000"));
  EXPECT_THAT(Refusal("n_head", 3), HasSubstr("n_head 3 does not divide n_embd 4"));
  EXPECT_THAT(Refusal("resid_pdrop", 1), HasSubstr("resid_pdrop"));
  EXPECT_THAT(Refusal("embd_pdrop", 0), HasSubstr("embd_pdrop: expected 0.25, the value of resid_pdrop, found 0"));
  EXPECT_THAT(Refusal("attn_pdrop", nullptr), HasSubstr("attn_pdrop: expected 0.25, the value of resid_pdrop"));
  EXPECT_THAT(std::string(ParseHuggingFaceConfig("[1", "x").status().message()), HasSubstr("x is not a JSON object"));
}

constexpr char kLlama31[] = R"({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "vocab_size": 128256, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "pretraining_tp": 1,
  "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"}})";

TEST(LlamaConfig, ReadsTheFilesOfTransformers4) {
  auto sizes = ParseHuggingFaceConfig(kLlama31, "config.json");

  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->head_width, 128);
  EXPECT_EQ(sizes->kv_heads, 8);
  EXPECT_FALSE(sizes->tied);
  EXPECT_EQ(sizes->rope, (Rope{.theta = 500000,
                               .scaling = Rope::Scaling::kLlama3,
                               .factor = 8,
                               .low_frequency_factor = 1,
                               .high_frequency_factor = 4,
                               .original_context = 8192}));
}

TEST(LlamaConfig, RoundTrips_ForEachFamily) {
  for (ModelFamily family : {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2}) {
    for (Rope::Scaling scaling : {Rope::Scaling::kNone, Rope::Scaling::kLinear}) {
      ModelSizes sizes = CompleteLlamaSizes({.family = family,
                                             .layers = 2,
                                             .heads = 4,
                                             .width = 16,
                                             .context = 64,
                                             .kv_heads = 2,
                                             .tied = scaling != Rope::Scaling::kNone});
      sizes.rope = {.theta = 1e6, .scaling = scaling, .factor = scaling == Rope::Scaling::kNone ? 1.0 : 2.0};
      if (family == ModelFamily::kQwen2) sizes.attention_bias = AttentionBias::kQkv;
      if (family == ModelFamily::kMistral) sizes.window = 64;

      auto parsed = ParseHuggingFaceConfig(HuggingFaceConfig(sizes, "BF16"), "config.json");

      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(*parsed, sizes) << FamilyName(family);
    }
  }
}

TEST(LlamaConfig, ShortWindow_LimitsTheLengthOfSequences) {
  auto sizes = ParseHuggingFaceConfig(R"({"model_type": "mistral", "num_hidden_layers": 1, "num_attention_heads": 8,
    "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 131072, "vocab_size": 99})",
                                      "config.json");

  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->window, 4096);
  EXPECT_EQ(sizes->context, 131072);
  EXPECT_EQ(LongestSequence(*sizes), 4096);
}

// The defaults of transformers differ by family.
TEST(LlamaConfig, MissingKeysHaveTheDefaultsOfTheLibrary) {
  const auto read = [](const char* family, const char* more) {
    auto sizes = ParseHuggingFaceConfig(absl::StrCat(R"({"num_hidden_layers": 1, "num_attention_heads": 64,
      "hidden_size": 256, "intermediate_size": 96, "max_position_embeddings": 8192, "vocab_size": 99, "model_type": ")",
                                                     family, "\"", more, "}"),
                                        "config.json");
    EXPECT_TRUE(sizes.ok()) << sizes.status();
    return sizes.value_or(ModelSizes{});
  };
  EXPECT_EQ(read("llama", "").kv_heads, 64);
  EXPECT_EQ(read("mistral", "").kv_heads, 8);
  EXPECT_EQ(read("qwen2", "").kv_heads, 32);
  EXPECT_EQ(read("mistral", R"(, "num_key_value_heads": null)").kv_heads, 64);
  EXPECT_EQ(read("mistral", R"(, "sliding_window": null)").window, 0);
  EXPECT_EQ(read("qwen2", R"(, "use_sliding_window": true, "sliding_window": 512)").window, 0);
  EXPECT_EQ(read("qwen2", R"(, "use_sliding_window": true, "sliding_window": 512, "max_window_layers": 0)").window,
            512);
  EXPECT_EQ(read("qwen2", R"(, "sliding_window": 512)").window, 0);
  EXPECT_EQ(read("llama", R"(, "rope_scaling": null, "rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4)").rope,
            (Rope{.theta = 5e5}));
  EXPECT_EQ(read("llama", R"(, "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0}, "pretraining_tp": 2)")
                .rope.original_context,
            8192);
}

TEST(HuggingFaceConfig, DeeplyNestedText_IsRefused) {
  const std::string deep = absl::StrCat("{\"a\": ", std::string(20000, '['), std::string(20000, ']'), "}");

  EXPECT_THAT(std::string(ParseHuggingFaceConfig(deep, "x").status().message()),
              HasSubstr("x has more than 32 levels"));
}

TEST(LlamaConfig, EverySettingThatCannotBeTrainedIsRefused) {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(kLlama31);
    config[key] = value;
    return std::string(ParseHuggingFaceConfig(config.dump(), "x/config.json").status().message());
  };
  EXPECT_THAT(refusal("hidden_act", "gelu"), HasSubstr("hidden_act: expected \"silu\", found \"gelu\""));
  EXPECT_THAT(refusal("num_key_value_heads", 5), HasSubstr("kv_heads must divide heads: 32 / 5 leaves 2"));
  EXPECT_THAT(refusal("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
              HasSubstr("rope_scaling.rope_type: expected \"default\", \"linear\" or \"llama3\", found \"yarn\""));
  EXPECT_THAT(refusal("rope_scaling", {{"type", "linear"}, {"factor", "x"}}), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(refusal("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
              HasSubstr("rope_scaling.low_freq_factor"));
  EXPECT_THAT(refusal("attention_dropout", 0.1), HasSubstr("attention_dropout: expected 0.0, found 0.1"));
  EXPECT_THAT(refusal("head_dim", 7), HasSubstr("head_width must be even"));
  EXPECT_THAT(refusal("tie_word_embeddings", 1), HasSubstr("tie_word_embeddings: expected true or false, found 1"));
  EXPECT_THAT(refusal("quantization_config", {{"bits", 4}}), HasSubstr("quantization_config"));
}

// All layers of our models have the same attention.
TEST(LlamaConfig, WindowOfSomeLayers_IsRefused) {
  const auto message = [](const char* more) {
    const std::string config = absl::StrCat(R"({"model_type": "qwen2", "num_hidden_layers": 2, "num_attention_heads": 8,
      "num_key_value_heads": 8, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 8192,
      "vocab_size": 99, "use_sliding_window": true, "max_window_layers": )",
                                            more, "}");
    return std::string(ParseHuggingFaceConfig(config, "x").status().message());
  };
  EXPECT_THAT(message("1"), HasSubstr("max_window_layers: expected 0, or num_hidden_layers or more"));
  EXPECT_THAT(message(R"(0, "layer_types": ["full_attention", "sliding_attention"])"),
              HasSubstr(R"(layer_types: expected a list of "sliding_attention")"));
  EXPECT_THAT(message(R"(2, "layer_types": ["full_attention", "sliding_attention"])"),
              HasSubstr(R"(layer_types: expected a list of "full_attention")"));
  EXPECT_EQ(message(R"(0, "layer_types": ["sliding_attention", "sliding_attention"])"), "");
  EXPECT_EQ(message(R"(2, "layer_types": ["full_attention", "full_attention"])"), "");
}

}  // namespace
}  // namespace trainyard
