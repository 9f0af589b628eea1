#include "worker/trainer/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/model/model_factory.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kVocabulary = 53;

std::unique_ptr<Model> NewGeneratingModel(ModelFamily family, int64_t context) {
  ModelSizes sizes{
      .family = family, .layers = 2, .heads = 4, .width = 24, .context = context, .vocabulary = kVocabulary};
  if (IsLlamaGraph(family)) {
    sizes.kv_heads = 2;
    sizes = CompleteLlamaSizes(sizes);
  }
  auto model = NewModel(sizes, 11, at::kFloat);
  EXPECT_TRUE(model.ok()) << model.status();
  c10::NoGradGuard no_grad;
  // Large weights, so that scores differ much between tokens.
  for (const NamedTensor& parameter : (*model)->parameters()) {
    if (parameter.tensor.dim() > 1) parameter.tensor.detach().mul_(12);
  }
  return *std::move(model);
}

struct Texts final : TextReceiver {
  explicit Texts(size_t prompts) : tokens(prompts), ends(prompts) {}
  absl::Status Add(size_t prompt, int64_t token) override {
    tokens[prompt].push_back(token);
    ++total;
    return total == fails_at ? absl::UnknownError("the pipe is closed") : absl::OkStatus();
  }
  absl::Status End(size_t prompt, TextEnd end) override {
    ends[prompt].push_back(end);
    return absl::OkStatus();
  }
  std::vector<std::vector<int64_t>> tokens;
  std::vector<std::vector<TextEnd>> ends;
  int total = 0, fails_at = -1;
};

Texts GenerateAll(Model& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options) {
  Texts texts(prompts.size());
  const absl::Status status = Generate(model, prompts, options, texts, [] { return false; });
  EXPECT_TRUE(status.ok()) << status;
  return texts;
}

// The most likely tokens after a prompt; each one is computed by a pass over the last tokens of the text before it.
std::vector<int64_t> MostLikelyByWholePasses(Model& model, std::vector<int64_t> tokens, int64_t count) {
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  std::vector<int64_t> generated;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = std::min(static_cast<int64_t>(tokens.size()), model.context());
    at::Tensor inputs = at::empty({1, length}, at::kLong);
    std::copy(tokens.end() - length, tokens.end(), inputs.mutable_data_ptr<int64_t>());
    tokens.push_back(model.Logits(inputs, hooks)[0][length - 1].argmax().item<int64_t>());
    generated.push_back(tokens.back());
  }
  return generated;
}

const std::vector<std::vector<int64_t>>& FivePrompts() {
  static const auto* const prompts = new std::vector<std::vector<int64_t>>{
      {3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {40, 41, 42}, {7, 7, 7, 7, 7}, {50, 2}};
  return *prompts;
}

TEST(Generate, MostLikelyTokens_AreThoseOfWholePasses_AlsoBeyondTheContext) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (int64_t context : {10, 64}) {
      auto model = NewGeneratingModel(family, context);
      const Texts texts = GenerateAll(*model, FivePrompts(), {.tokens = 14, .policy = {.temperature = 0}, .batch = 3});
      for (size_t i = 0; i < FivePrompts().size(); ++i) {
        EXPECT_EQ(texts.tokens[i], MostLikelyByWholePasses(*model, FivePrompts()[i], 14))
            << FamilyName(family) << " of context " << context << ", prompt " << i;
        EXPECT_THAT(texts.ends[i], ElementsAre(TextEnd::kLength));
      }
    }
  }
}

TEST(Generate, DrawnTokens_DependOnThePromptAndTheSeedAlone) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    auto model = NewGeneratingModel(family, 32);
    GenerateOptions options{.tokens = 12, .policy = {.temperature = 1.5, .top_p = 0.95}, .seed = 5, .batch = 4};
    const Texts together = GenerateAll(*model, FivePrompts(), options);
    for (size_t i = 0; i < FivePrompts().size(); ++i) {
      EXPECT_EQ(GenerateAll(*model, {FivePrompts()[i]}, options).tokens[0], together.tokens[i]) << "prompt " << i;
    }
    options.seed = 6;
    EXPECT_NE(GenerateAll(*model, FivePrompts(), options).tokens, together.tokens);
  }
}

TEST(Generate, EndToken_EndsItsTextAndTheNextPromptTakesItsPlace) {
  auto model = NewGeneratingModel(ModelFamily::kLlama, 64);
  GenerateOptions options{.tokens = 20, .policy = {.temperature = 0}, .batch = 2};
  const Texts whole = GenerateAll(*model, FivePrompts(), options);
  options.ends = {kVocabulary - 1, whole.tokens[0][4]};
  const Texts texts = GenerateAll(*model, FivePrompts(), options);
  for (size_t i = 0; i < FivePrompts().size(); ++i) {
    std::vector<int64_t> expected = whole.tokens[i];
    const auto end = std::find_first_of(expected.begin(), expected.end(), options.ends.begin(), options.ends.end());
    const bool ends = end != expected.end();
    if (ends) expected.erase(end + 1, expected.end());
    EXPECT_EQ(texts.tokens[i], expected) << "prompt " << i;
    EXPECT_THAT(texts.ends[i], ElementsAre(ends ? TextEnd::kEndToken : TextEnd::kLength)) << "prompt " << i;
  }
  EXPECT_THAT(texts.ends[0], ElementsAre(TextEnd::kEndToken));
}

TEST(Generate, Interruption_EndsTheTextsThatHaveBegun) {
  auto model = NewGeneratingModel(ModelFamily::kGpt2, 64);
  Texts texts(FivePrompts().size());
  int calls = 0;
  const absl::Status status = Generate(*model, FivePrompts(), {.tokens = 20, .policy = {.temperature = 0}, .batch = 2},
                                       texts, [&] { return ++calls == 4; });
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i : {0, 1}) {
    EXPECT_EQ(texts.tokens[i].size(), 4u);  // of the prompt's pass, and of one pass after each earlier call
    EXPECT_THAT(texts.ends[i], ElementsAre(TextEnd::kInterrupted));
  }
  for (size_t i : {2, 3, 4}) EXPECT_TRUE(texts.tokens[i].empty() && texts.ends[i].empty());
}

TEST(Generate, ErrorsOfTheReceiverAndDamagedWeights_EndTheGeneration) {
  auto model = NewGeneratingModel(ModelFamily::kLlama, 16);
  Texts texts(FivePrompts().size());
  texts.fails_at = 7;
  const GenerateOptions options{.tokens = 9, .batch = 2};
  EXPECT_EQ(Generate(*model, FivePrompts(), options, texts, [] { return false; }).message(), "the pipe is closed");
  EXPECT_EQ(texts.total, 7);
  model->parameters().front().tensor.detach().fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(std::string(Generate(*model, FivePrompts(), options, texts, [] { return false; }).message()),
              HasSubstr("is not a number"));
}

}  // namespace
}  // namespace trainyard
