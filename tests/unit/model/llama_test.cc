#include "worker/model/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "worker/model/model_factory.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

constexpr int64_t kTokens = 8;

// Two heads share each head of keys and values, and the width of a head is not width / heads.
ModelSizes SmallLlama(bool tied = false) {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = 2,
                             .heads = 4,
                             .width = 20,
                             .context = kTokens,
                             .vocabulary = 32,
                             .kv_heads = 2,
                             .head_width = 6,
                             .inner = 28,
                             .tied = tied});
}

std::pair<at::Tensor, at::Tensor> LlamaSample() {
  at::Tensor tokens = at::arange(2 * (kTokens + 1), at::kLong).view({2, kTokens + 1});
  return {tokens.narrow(1, 0, kTokens), tokens.narrow(1, 1, kTokens)};
}

std::unique_ptr<Model> NewSmall(const ModelSizes& sizes, at::ScalarType type = at::kDouble) {
  auto model = NewModel(sizes, 1, type);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(Llama, ParametersAreThoseOfTheDescription_ForEachFamilyAndBias) {
  for (ModelFamily family : {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2}) {
    for (AttentionBias bias : {AttentionBias::kNone, AttentionBias::kQkv, AttentionBias::kAll}) {
      ModelSizes sizes = SmallLlama(/*tied=*/bias == AttentionBias::kQkv);
      sizes.family = family;
      sizes.attention_bias = bias;
      sizes.mlp_bias = bias == AttentionBias::kAll;
      const ModelDescription description = DescribeModel(sizes);
      auto model = NewSmall(sizes);
      ASSERT_EQ(model->parameters().size(), description.parameters.size());
      for (size_t i = 0; i < description.parameters.size(); ++i) {
        EXPECT_EQ(model->parameters()[i].name, description.parameters[i].name);
        EXPECT_EQ(model->parameters()[i].tensor.sizes().vec(), description.parameters[i].shape);
      }
      EXPECT_EQ(static_cast<uint64_t>(model->num_elements()), CountParameters(sizes));
    }
  }
}

TEST(Llama, ReadyOrderContainsEachParameterOnce_AndOnlyTheEmbeddingFeedsUnits) {
  for (bool tied : {false, true}) {
    auto model = NewSmall(SmallLlama(tied));
    std::vector<int> order = model->ReadyOrder(), all(order.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order.back(), 0);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, all);
    ASSERT_EQ(order.size(), model->parameters().size());
    for (int i : order) EXPECT_EQ(model->FeedsUnits(i), i == 0) << model->parameters()[static_cast<size_t>(i)].name;
  }
}

TEST(Llama, EveryParameterGetsAGradient) {
  ModelSizes sizes = SmallLlama();
  sizes.attention_bias = AttentionBias::kAll;
  sizes.mlp_bias = true;
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    auto model = NewSmall(sizes, type);
    NoUnitHooks hooks;
    auto [inputs, targets] = LlamaSample();
    model->LossSum(inputs, targets, hooks, std::nullopt).backward();
    for (const NamedTensor& parameter : model->parameters()) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
      EXPECT_GT(parameter.tensor.grad().abs().sum().item<double>(), 0) << parameter.name;
    }
  }
}

TEST(Llama, GradientsAreTheSlopesOfTheLoss) {
  ModelSizes sizes = SmallLlama();
  sizes.attention_bias = AttentionBias::kAll;
  sizes.mlp_bias = true;
  auto model = NewSmall(sizes);
  NoUnitHooks hooks;
  auto [inputs, targets] = LlamaSample();
  const auto loss = [&, &in = inputs, &out = targets] { return model->LossSum(in, out, hooks, std::nullopt); };
  loss().backward();
  c10::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (const NamedTensor& parameter : model->parameters()) {
    at::Tensor flat = parameter.tensor.view(-1);
    const int64_t i = flat.numel() / 2;
    const double value = flat[i].item<double>(), slope = parameter.tensor.grad().view(-1)[i].item<double>();
    flat[i] = value + kStep;
    const double above = loss().item<double>();
    flat[i] = value - kStep;
    const double below = loss().item<double>();
    flat[i] = value;
    EXPECT_NEAR((above - below) / (2 * kStep), slope, 1e-7 + 1e-5 * std::abs(slope)) << parameter.name;
  }
}

TEST(Llama, FreshModel_HasTheLossOfAUniformGuess) {
  auto model = NewSmall(SmallLlama());
  NoUnitHooks hooks;
  c10::NoGradGuard no_grad;
  auto [inputs, targets] = LlamaSample();
  const double loss = model->LossSum(inputs, targets, hooks, std::nullopt).item<double>();
  EXPECT_NEAR(loss / (2 * kTokens), std::log(32.0), 0.05);
}

TEST(Llama, Logits_DoNotDependOnLaterTokens_ButOnPositions) {
  auto model = NewSmall(SmallLlama());
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  const at::Tensor inputs = LlamaSample().first;
  at::Tensor changed = inputs.clone(), swapped = inputs.clone();
  changed.narrow(1, 5, 3).add_(7);
  swapped.narrow(1, 0, 2).copy_(inputs.narrow(1, 0, 2).flip(1));

  const at::Tensor a = model->Logits(inputs, hooks), b = model->Logits(changed, hooks),
                   c = model->Logits(inputs.narrow(1, 0, 5), hooks), d = model->Logits(swapped, hooks);

  ASSERT_EQ(a.sizes(), (at::IntArrayRef{2, kTokens, 32}));
  EXPECT_TRUE(a.narrow(1, 0, 5).allclose(b.narrow(1, 0, 5), 1e-12, 1e-12));
  EXPECT_TRUE(a.narrow(1, 0, 5).allclose(c, 1e-12, 1e-12));
  EXPECT_FALSE(a.narrow(1, 5, 3).allclose(b.narrow(1, 5, 3)));
  EXPECT_FALSE(a.narrow(1, 4, 1).allclose(d.narrow(1, 4, 1), 1e-9, 1e-9)) << "logits depend on the order of tokens";
}

TEST(Llama, TargetOfMinusOne_IsIgnored) {
  auto model = NewSmall(SmallLlama());
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  auto [inputs, targets] = LlamaSample();
  at::Tensor masked = targets.clone();
  masked.narrow(1, 3, kTokens - 3).fill_(-1);
  const double expected = model->LossSum(inputs.narrow(1, 0, 3), targets.narrow(1, 0, 3), hooks, {}).item<double>();
  EXPECT_NEAR(model->LossSum(inputs, masked, hooks, {}).item<double>(), expected, 1e-12 * expected);
}

TEST(Llama, LossOfALargeVocabulary_IsThatOfItsLogits) {
  for (bool tied : {false, true}) {
    ModelSizes sizes = SmallLlama(tied);
    sizes.vocabulary = 9001;
    auto model = NewSmall(sizes);
    NoUnitHooks hooks;
    auto [inputs, targets] = LlamaSample();
    const auto gradients = [&](const at::Tensor& loss) {
      std::vector<at::Tensor> all;
      loss.backward();
      for (const NamedTensor& parameter : model->parameters()) {
        all.push_back(parameter.tensor.grad().clone());
        at::Tensor(parameter.tensor).mutable_grad().reset();
      }
      return all;
    };
    const at::Tensor loss = model->LossSum(inputs, targets, hooks, std::nullopt);
    const at::Tensor logits = model->Logits(inputs, hooks).view({-1, sizes.vocabulary});
    const at::Tensor expected = at::cross_entropy_loss(logits, targets.reshape({-1}), {}, at::Reduction::Sum);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-10);
    const auto found = gradients(loss), of_logits = gradients(expected);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(found[i].allclose(of_logits[i], 1e-10, 1e-12)) << model->parameters()[i].name;
    }
  }
}

TEST(Llama, InvalidSizes_AreRefusedWithTheNumbers) {
  ModelSizes sizes = SmallLlama();
  sizes.kv_heads = 3;
  const auto model = NewModel(sizes, 1, at::kFloat);
  ASSERT_TRUE(absl::IsInvalidArgument(model.status()));
  EXPECT_THAT(model.status().message(), HasSubstr("4 / 3 leaves 1"));
}

}  // namespace
}  // namespace trainyard
