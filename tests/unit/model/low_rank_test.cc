#include "worker/model/ops/low_rank.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "models/lora_targets.h"
#include "tests/unit/model/gradients.h"
#include "worker/model/model_factory.h"

namespace trainyard {
namespace {

constexpr int64_t kLoraTokens = 7;

ModelSizes AdaptedGpt2() {
  return {.layers = 2,
          .heads = 2,
          .width = 12,
          .context = kLoraTokens,
          .vocabulary = 40,
          .lora = {.rank = 3, .alpha = 6, .targets = {"c_attn", "h.1.*"}}};
}

ModelSizes AdaptedLlama() {
  ModelSizes sizes = CompleteLlamaSizes({.family = ModelFamily::kLlama,
                                         .layers = 2,
                                         .heads = 4,
                                         .width = 12,
                                         .context = kLoraTokens,
                                         .vocabulary = 40,
                                         .kv_heads = 2,
                                         .head_width = 6,
                                         .inner = 28,
                                         .tied = false,
                                         .attention_bias = AttentionBias::kAll});
  sizes.lora = {.rank = 3, .alpha = 6, .targets = {"*"}};
  return sizes;
}

// Gives the adapters values that are not zero.
void FillAdapters(Model& model) {
  c10::NoGradGuard no_grad;
  at::manual_seed(3);
  for (const NamedTensor& parameter : model.parameters()) {
    at::Tensor tensor = parameter.tensor;
    if (IsAdapterName(parameter.name)) tensor.copy_(at::randn(tensor.sizes()) * 0.2);
  }
}

std::unique_ptr<Model> NewAdapted(const ModelSizes& sizes, at::ScalarType type = at::kDouble) {
  auto model = NewModel(sizes, 1, type);
  EXPECT_TRUE(model.ok()) << model.status();
  FillAdapters(**model);
  return *std::move(model);
}

std::pair<at::Tensor, at::Tensor> LoraSample() {
  at::Tensor tokens = at::arange(2 * (kLoraTokens + 1), at::kLong).view({2, kLoraTokens + 1});
  return {tokens.narrow(1, 0, kLoraTokens), tokens.narrow(1, 1, kLoraTokens)};
}

TEST(AdaptedLinear, MatchesTheMergedMatrix_AndWritesTheGradientsOfTheAdapterOnly) {
  at::manual_seed(7);
  const at::Tensor weights = at::randn({5, 9}), x = at::randn({5, 6}), w = at::randn({9, 6}), a = at::randn({2, 6}),
                   b = at::randn({9, 2}), bias = at::randn({9}), residual = at::randn({5, 9});
  at::Tensor x1 = Leaf(x.to(at::kDouble)), a1 = Leaf(a.to(at::kDouble)), b1 = Leaf(b.to(at::kDouble));
  const at::Tensor merged = w.to(at::kDouble) + 2.5 * at::matmul(b1, a1);
  const auto exact = WithGradients(at::matmul(x1, merged.t()) + bias + residual, weights, {x1, a1, b1});

  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (bool transposed : {true, false}) {
      at::Tensor x2 = Leaf(x.to(type)), a2 = Leaf(a.to(type)), b2 = Leaf(b.to(type));
      const at::ScalarType sums = type == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor grad_a = at::zeros({2, 6}, sums), grad_b = at::zeros({9, 2}, sums);
      CollectingSink sink({at::Tensor(), at::Tensor(), grad_a, grad_b});
      const at::Tensor frozen = (transposed ? w : w.t().contiguous()).to(type);

      LinearArgs args;
      args.weight = {frozen, 0};
      args.transposed = transposed;
      args.bias = {bias.to(type), 1};
      args.residual = residual.to(type);
      args.sink = &sink;
      LowRank adapter;
      adapter.a = {a2, 2};
      adapter.b = {b2, 3};
      adapter.scale = 2.5;

      const at::Tensor y = AdaptedLinear(x2, args, adapter, /*dropout=*/{});
      const auto found = WithGradients(y, weights, {x2});

      const double tolerance = type == at::kDouble ? 1e-14 : type == at::kFloat ? 1e-6 : 3e-2;
      EXPECT_LT(RelativeDifference(found[0], exact[0]), tolerance) << type;
      EXPECT_LT(RelativeDifference(found[1], exact[1]), tolerance) << type;
      EXPECT_LT(RelativeDifference(grad_a, exact[2]), tolerance) << type;
      EXPECT_LT(RelativeDifference(grad_b, exact[3]), tolerance) << type;
      EXPECT_FALSE(a2.grad().defined());
      EXPECT_EQ(sink.done(), (std::vector<int>{0, 0, 1, 1}));
    }
  }
}

TEST(AdaptedLinear, TapeReplaysAllProducts_WithTheSameBits) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({5, 6}), w = at::randn({9, 6}), weights = at::randn({5, 9});
  at::Tensor a = Leaf(at::randn({2, 6})), b = Leaf(at::randn({9, 2}));
  const auto run = [&](ProductTape* tape) {
    LinearArgs args;
    args.weight = {w, 0};
    args.transposed = true;
    args.tape = tape;
    LowRank adapter;
    adapter.a = {a, 1};
    adapter.b = {b, 2};
    adapter.scale = 3;
    return AdaptedLinear(x, args, adapter, {.rate = 0.3, .key = {.seed = 11}, .unit = 1});
  };
  const auto expected = WithGradients(run(nullptr), weights, {a, b});
  const at::Tensor grad_a = expected[1].clone(), grad_b = expected[2].clone();
  a.mutable_grad().reset();
  b.mutable_grad().reset();
  ProductTape tape;
  {
    c10::NoGradGuard no_grad;
    run(&tape);
  }
  tape.Rewind();

  const auto found = WithGradients(run(&tape), weights, {a, b});

  EXPECT_TRUE(at::equal(found[0], expected[0]));
  EXPECT_TRUE(at::equal(found[1], grad_a));
  EXPECT_TRUE(at::equal(found[2], grad_b));
  EXPECT_THROW(tape.Next(), std::out_of_range);
}

class AdaptedModel : public testing::TestWithParam<ModelSizes> {};
INSTANTIATE_TEST_SUITE_P(, AdaptedModel, testing::Values(AdaptedGpt2(), AdaptedLlama()),
                         [](const auto& info) { return std::string(FamilyName(info.param.family)); });

TEST_P(AdaptedModel, StartsAsTheModelWithoutAdapters) {
  auto adapted = *NewModel(GetParam(), 5, at::kFloat), base = *NewModel(BaseSizes(GetParam()), 5, at::kFloat);
  NoUnitHooks hooks;
  const at::Tensor inputs = LoraSample().first;

  EXPECT_TRUE(at::equal(adapted->Logits(inputs, hooks), base->Logits(inputs, hooks)));
}

TEST_P(AdaptedModel, TrainsTheAdaptersOnly) {
  auto model = NewAdapted(GetParam());
  NoUnitHooks hooks;
  auto [inputs, targets] = LoraSample();

  model->LossSum(inputs, targets, hooks, std::nullopt).backward();

  for (const NamedTensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.tensor.grad().defined(), IsAdapterName(parameter.name)) << parameter.name;
    if (!parameter.tensor.grad().defined()) continue;
    EXPECT_GT(parameter.tensor.grad().abs().sum().item<double>(), 0) << parameter.name;
  }
}

TEST_P(AdaptedModel, HasTheLossOfTheMergedMatrices) {
  auto adapted = NewAdapted(GetParam()), merged = *NewModel(BaseSizes(GetParam()), 1, at::kDouble);
  const ModelDescription description = DescribeModel(GetParam());
  const auto parameter = [](Model& model, const std::string& name) {
    const auto& all = model.parameters();
    return std::find_if(all.begin(), all.end(), [&](const NamedTensor& p) { return p.name == name; })->tensor;
  };
  for (const ProjectionDescription& projection : description.projections) {
    if (projection.lora_a < 0) continue;
    c10::NoGradGuard no_grad;
    const at::Tensor product = at::matmul(parameter(*adapted, projection.name + kLoraBSuffix),
                                          parameter(*adapted, projection.name + kLoraASuffix));
    parameter(*merged, projection.name + ".weight").add_((projection.transposed ? product : product.t()) * 2);
  }
  NoUnitHooks hooks;
  auto [inputs, targets] = LoraSample();

  const double found = adapted->LossSum(inputs, targets, hooks, std::nullopt).item<double>();

  EXPECT_NEAR(found, merged->LossSum(inputs, targets, hooks, std::nullopt).item<double>(), 1e-10);
  auto untouched = *NewModel(BaseSizes(GetParam()), 1, at::kDouble);
  EXPECT_GT(std::abs(found - untouched->LossSum(inputs, targets, hooks, std::nullopt).item<double>()), 1e-4);
}

TEST_P(AdaptedModel, DropoutOfAdaptersDependsOnTheKeyAlone) {
  ModelSizes sizes = GetParam();
  sizes.lora.dropout = 0.5;
  auto model = NewAdapted(sizes);
  NoUnitHooks hooks;
  auto [inputs, targets] = LoraSample();
  const auto loss = [&, &in = inputs, &out = targets](std::optional<DropoutKey> key) {
    return model->LossSum(in, out, hooks, key).item<double>();
  };

  const double first = loss(DropoutKey{.seed = 1, .step = 1, .first_sample = 0});

  EXPECT_EQ(loss(DropoutKey{.seed = 1, .step = 1, .first_sample = 0}), first);
  EXPECT_NE(loss(DropoutKey{.seed = 1, .step = 1, .first_sample = 1}), first);
  EXPECT_NE(loss(std::nullopt), first);
  EXPECT_EQ(loss(std::nullopt), loss(std::nullopt));
}

TEST_P(AdaptedModel, DropoutOfASequenceDoesNotDependOnTheOthersOfItsMicroBatch) {
  ModelSizes sizes = GetParam();
  sizes.lora.dropout = 0.5;
  auto model = NewAdapted(sizes);
  NoUnitHooks hooks;
  auto [inputs, targets] = LoraSample();
  const auto loss = [&, &in = inputs, &out = targets](int64_t first, int64_t count) {
    return model->LossSum(in.narrow(0, first, count), out.narrow(0, first, count), hooks,
                          DropoutKey{.seed = 1, .step = 1, .first_sample = static_cast<uint64_t>(first)});
  };

  const double alone = loss(0, 1).item<double>() + loss(1, 1).item<double>();

  EXPECT_NEAR(loss(0, 2).item<double>(), alone, 1e-12 * alone);
}

TEST_P(AdaptedModel, ReadyOrderContainsEachParameterOnce) {
  auto model = NewAdapted(GetParam());
  std::vector<int> order = model->ReadyOrder(), all(model->parameters().size());
  std::iota(all.begin(), all.end(), 0);
  std::sort(order.begin(), order.end());

  EXPECT_EQ(order, all);
}

}  // namespace
}  // namespace trainyard
