// Decoding with a cache of keys and values gives the scores of passes over whole sequences.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "models/lora_targets.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/model_factory.h"
#include "worker/model/ops/few_rows.h"

namespace trainyard {
namespace {

constexpr int64_t kPositions = 40;

struct DecodedModel {
  const char* name;
  ModelSizes sizes;
};

ModelSizes LlamaSizes(int64_t heads, int64_t kv_heads, int64_t depth) {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = 2,
                             .heads = heads,
                             .width = 24,
                             .context = kPositions,
                             .vocabulary = 67,
                             .kv_heads = kv_heads,
                             .head_width = depth,
                             .inner = 29,
                             .tied = false});
}

// Widths that are and are not multiples of a vector register's length; groups of heads; biases; a tied head.
std::vector<DecodedModel> DecodedModels() {
  ModelSizes qwen = LlamaSizes(4, 1, 16);
  qwen.family = ModelFamily::kQwen2;
  qwen.attention_bias = AttentionBias::kQkv;
  qwen.tied = true;
  ModelSizes adapted_gpt2{.layers = 2, .heads = 3, .width = 30, .context = kPositions, .vocabulary = 67};
  ModelSizes adapted_llama = LlamaSizes(6, 2, 20);
  adapted_gpt2.lora = adapted_llama.lora = {.rank = 2, .alpha = 4, .dropout = 0.5, .targets = {"*"}};
  return {{"gpt2 with adapters", adapted_gpt2},
          {"llama with adapters", adapted_llama},
          {"gpt2", {.layers = 2, .heads = 3, .width = 30, .context = kPositions, .vocabulary = 67}},
          {"llama", LlamaSizes(4, 4, 6)},
          {"grouped llama", LlamaSizes(6, 2, 20)},
          {"qwen2", qwen}};
}

// Returns a model with large weights, so that scores differ much between tokens.
std::unique_ptr<Model> NewDecodedModel(const ModelSizes& sizes, at::ScalarType type = at::kFloat) {
  auto model = NewModel(sizes, 7, type);
  EXPECT_TRUE(model.ok()) << model.status();
  c10::NoGradGuard no_grad;
  for (const NamedTensor& parameter : (*model)->parameters()) {
    if (parameter.tensor.dim() > 1) parameter.tensor.detach().mul_(10);
    if (IsAdapterName(parameter.name)) parameter.tensor.detach().fill_(0.1);
  }
  return *std::move(model);
}

std::vector<int64_t> TokensOf(int64_t length, int64_t seed) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back((seed * 31 + i * i * 7 + i) % 67);
  return tokens;
}

// The scores after the last token, by a pass without a cache.
at::Tensor WholeScores(Model& model, const std::vector<int64_t>& tokens) {
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  at::Tensor inputs = at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), inputs.mutable_data_ptr<int64_t>());
  return model.Logits(inputs, hooks)[0][-1];
}

KeyValueCache NewCache(const Model& model, int64_t sequences, int64_t positions = kPositions) {
  return KeyValueCache(model.cache_shape(), {.sequences = sequences, .positions = positions},
                       model.parameters().front().tensor.options().requires_grad(false));
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Decode, ScoresAreThoseOfWholeSequences_ForPromptsOfDifferentLengths) {
  for (const DecodedModel& decoded : DecodedModels()) {
    SCOPED_TRACE(decoded.name);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      auto model = NewDecodedModel(decoded.sizes, type);
      KeyValueCache cache = NewCache(*model, 4);
      std::vector<std::vector<int64_t>> texts = {TokensOf(1, 1), TokensOf(9, 2), TokensOf(17, 3), TokensOf(4, 4)};
      std::vector<SequenceTokens> prompts;
      for (size_t i = 0; i < texts.size(); ++i) prompts.push_back({static_cast<int64_t>(i), texts[i]});
      at::Tensor scores = model->Decode(prompts, cache);
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-12;
      for (int64_t step = 0; step < 6; ++step) {
        ASSERT_EQ(scores.sizes(), (at::IntArrayRef{4, 67}));
        for (size_t i = 0; i < texts.size(); ++i) {
          const at::Tensor expected = WholeScores(*model, texts[i]);
          ASSERT_GT(expected.abs().max().item<double>(), 0.5) << "small scores would prove nothing";
          EXPECT_LE(LargestDifference(scores[static_cast<int64_t>(i)], expected),
                    tolerance * expected.abs().max().item<double>())
              << "sequence " << i << ", step " << step;
          texts[i].push_back((step * 13 + static_cast<int64_t>(i) * 5) % 67);
        }
        std::vector<SequenceTokens> next;
        for (size_t i = 0; i < texts.size(); ++i) {
          next.push_back({static_cast<int64_t>(i), absl::MakeSpan(texts[i]).last(1)});
        }
        scores = model->Decode(next, cache);
      }
    }
  }
}

TEST(Decode, TokensThatAreAddedInParts_GiveTheScoresOfOnePass) {
  for (const DecodedModel& decoded : DecodedModels()) {
    SCOPED_TRACE(decoded.name);
    auto model = NewDecodedModel(decoded.sizes);
    KeyValueCache cache = NewCache(*model, 1);
    const std::vector<int64_t> tokens = TokensOf(20, 5);
    model->Decode({{.sequence = 0, .tokens = absl::MakeSpan(tokens).first(7)}}, cache);
    const at::Tensor scores = model->Decode({{.sequence = 0, .tokens = absl::MakeSpan(tokens).subspan(7)}}, cache);
    EXPECT_LE(LargestDifference(scores[0], WholeScores(*model, tokens)), 1e-5);
    EXPECT_EQ(cache.length(0), 20);
  }
}

TEST(Decode, BitsOfASequence_DoNotDependOnTheOthersOrOnThreads) {
  const int threads = at::get_num_threads();
  for (const DecodedModel& decoded : DecodedModels()) {
    SCOPED_TRACE(decoded.name);
    auto model = NewDecodedModel(decoded.sizes);
    // The prompts run on one thread, because MKL computes their products, whose bits depend on the number of threads on
    // some CPUs.
    const auto scores_of = [&](int64_t sequences, int threads_of_steps) {
      at::set_num_threads(1);
      KeyValueCache cache = NewCache(*model, sequences);
      for (int64_t i = 0; i < sequences; ++i) {
        model->Decode({{.sequence = i, .tokens = TokensOf(5 + 3 * i, i)}}, cache);
      }
      at::set_num_threads(threads_of_steps);
      at::Tensor scores;
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<SequenceTokens> next;
        const std::vector<int64_t> token = {step + 11};
        for (int64_t i = 0; i < sequences; ++i) next.push_back({i, token});
        scores = model->Decode(next, cache);
      }
      return scores;
    };
    const at::Tensor alone = scores_of(1, 1);
    for (int64_t sequences : {2, 4, 7, 9}) {
      const int threads_of_steps = 1 + static_cast<int>(sequences % 2);
      EXPECT_TRUE(scores_of(sequences, threads_of_steps)[0].equal(alone[0])) << sequences << " sequences";
    }
  }
  at::set_num_threads(threads);
}

TEST(Decode, SlidingWindow_LimitsWhatATokenSees) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    ModelSizes sizes = LlamaSizes(4, 2, 6);
    sizes.family = ModelFamily::kMistral;
    sizes.layers = 1;
    sizes.window = 5;
    auto model = NewDecodedModel(sizes, type);
    // With one layer, the scores depend on the last five tokens alone, so other earlier tokens give the same scores.
    std::vector<int64_t> tokens = TokensOf(16, 6), changed = tokens;
    for (size_t i = 0; i < 11; ++i) changed[i] = (changed[i] + 20) % 67;
    const auto by_steps = [&](const std::vector<int64_t>& all, size_t prompt) {
      KeyValueCache cache = NewCache(*model, 1);
      at::Tensor scores = model->Decode({{.sequence = 0, .tokens = absl::MakeSpan(all).first(prompt)}}, cache);
      for (size_t i = prompt; i < all.size(); ++i) {
        scores = model->Decode({{.sequence = 0, .tokens = absl::MakeSpan(all).subspan(i, 1)}}, cache);
      }
      return scores[0];
    };
    const at::Tensor expected = by_steps(tokens, 1);
    for (size_t prompt : {4, 5, 6, 16}) EXPECT_LE(LargestDifference(by_steps(tokens, prompt), expected), 1e-5);
    EXPECT_LE(LargestDifference(by_steps(changed, 9), expected), 1e-5);
    changed[11] = (changed[11] + 1) % 67;
    EXPECT_GT(LargestDifference(by_steps(changed, 9), expected), 1e-3);
  }
}

TEST(Decode, ClearedSequence_BeginsAgain_AndTokensBeyondTheCacheAreRefused) {
  auto model = NewDecodedModel(LlamaSizes(4, 2, 6));
  KeyValueCache cache = NewCache(*model, 2, 8);
  const std::vector<int64_t> eight = TokensOf(8, 1), five = TokensOf(5, 2);
  model->Decode({{.sequence = 1, .tokens = eight}}, cache);
  EXPECT_THROW(model->Decode({{.sequence = 1, .tokens = five}}, cache), c10::Error);
  cache.Clear(1);
  EXPECT_LE(LargestDifference(model->Decode({{.sequence = 1, .tokens = five}}, cache)[0], WholeScores(*model, five)),
            1e-5);
}

TEST(Decode, Bfloat16_IsCloseToFp32) {
  for (const DecodedModel& decoded : DecodedModels()) {
    SCOPED_TRACE(decoded.name);
    auto exact = NewModel(decoded.sizes, 7, at::kFloat), rounded = NewModel(decoded.sizes, 7, at::kBFloat16);
    ASSERT_TRUE(exact.ok() && rounded.ok());
    KeyValueCache cache = NewCache(**rounded, 1);
    std::vector<int64_t> tokens = TokensOf(12, 3);
    (*rounded)->Decode({{.sequence = 0, .tokens = absl::MakeSpan(tokens).first(11)}}, cache);
    const at::Tensor scores = (*rounded)->Decode({{.sequence = 0, .tokens = absl::MakeSpan(tokens).last(1)}}, cache);
    const at::Tensor expected = WholeScores(**exact, tokens);
    EXPECT_LE(LargestDifference(scores[0].to(at::kFloat), expected), 0.05 * expected.abs().max().item<double>());
  }
}

TEST(FewRows, ProductsAreThoseOfLibTorch_ForOddSizesAndBothLayouts) {
  c10::NoGradGuard no_grad;
  for (int64_t rows : {1, 3, 4, 9}) {
    for (int64_t depth : {1, 15, 16, 50}) {
      for (int64_t columns : {1, 6, 33, 1500}) {
        for (bool transposed : {false, true}) {
          const at::Tensor x = at::randn({rows, depth}), bias = at::randn({columns});
          const at::Tensor residual = at::randn({rows, columns});
          const at::Tensor w = transposed ? at::randn({columns, depth}) : at::randn({depth, columns});
          const at::Tensor expected = x.matmul(transposed ? w.t() : w);
          EXPECT_TRUE(MultiplyFewRows(x, w, transposed, {}, {}).allclose(expected, 1e-4, 1e-4));
          EXPECT_TRUE(
              MultiplyFewRows(x, w, transposed, bias, residual).allclose(expected + bias + residual, 1e-4, 1e-4))
              << rows << " x " << depth << " x " << columns << (transposed ? ", transposed" : "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace trainyard
