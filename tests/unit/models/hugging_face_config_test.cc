// tests/interop/transformers_test.py checks that the Python library agrees.
#include "models/hugging_face_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  config.erase("resid_pdrop");
  EXPECT_EQ(ParseHuggingFaceConfig(config.dump(), "config.json")->dropout, 0.1);
}

TEST(HuggingFaceConfig, EverySettingThatCannotBeTrainedIsRefused) {
  EXPECT_THAT(Refusal("model_type", "bloom"), AllOf(HasSubstr("x/config.json"), HasSubstr("expected \"gpt2\"")));
  EXPECT_THAT(Refusal("tie_word_embeddings", false), HasSubstr("tie_word_embeddings: expected true, found false"));
  EXPECT_THAT(Refusal("n_inner", 99), HasSubstr("n_inner: expected 16, found 99"));
  EXPECT_THAT(Refusal("n_layer", "two"), HasSubstr("n_layer: expected a positive number, found \"two\""));
  EXPECT_THAT(Refusal("n_head", 3), HasSubstr("n_head 3 does not divide n_embd 4"));
  EXPECT_THAT(Refusal("resid_pdrop", 1), HasSubstr("resid_pdrop"));
  EXPECT_THAT(std::string(ParseHuggingFaceConfig("[1", "x").status().message()), HasSubstr("x is not a JSON object"));
}

}  // namespace
}  // namespace trainyard
