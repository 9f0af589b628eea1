
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/model/model_factory.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kContext = 8;
ModelSizes Small() { return {.layers = 2, .heads = 2, .width = 16, .context = kContext, .vocabulary = 32}; }

std::pair<at::Tensor, at::Tensor> Sample() {
  at::Tensor tokens = at::arange(2 * (kContext + 1), at::kLong).view({2, kContext + 1});
  return {tokens.narrow(1, 0, kContext), tokens.narrow(1, 1, kContext)};
}

class RecordingHooks final : public UnitHooks {
 public:
  void BeforeRoot() override { calls.push_back("before root"); }
  at::Tensor AfterRoot(const at::Tensor& y) override {
    calls.push_back("after root");
    return y;
  }
  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    calls.push_back(absl::StrCat("unit ", unit));
    at::Tensor y = body(x, nullptr);
    EXPECT_TRUE(!repeats || y.equal(body(x, nullptr))) << "unit " << unit << " gives a different result when run again";
    return y;
  }
  bool repeats = false;
  std::vector<std::string> calls;
};

double Loss(Model& model, std::optional<DropoutKey> key) {
  c10::NoGradGuard no_grad;
  auto [inputs, targets] = Sample();
  NoUnitHooks hooks;
  return model.LossSum(inputs, targets, hooks, key).item<double>();
}

TEST(Gpt2, HasTheNamesAndShapesOfThePublishedModel) {
  auto model = *NewModel(Small(), 1, at::kFloat);

  std::vector<std::string> names;
  for (const NamedTensor& p : model->parameters()) names.push_back(absl::StrCat(p.name, " ", p.tensor.dim()));
  EXPECT_THAT(
      std::vector<std::string>(names.begin(), names.begin() + 16),
      ElementsAre("wte.weight 2", "wpe.weight 2", "ln_f.weight 1", "ln_f.bias 1", "h.0.ln_1.weight 1",
                  "h.0.ln_1.bias 1", "h.0.attn.c_attn.weight 2", "h.0.attn.c_attn.bias 1", "h.0.attn.c_proj.weight 2",
                  "h.0.attn.c_proj.bias 1", "h.0.ln_2.weight 1", "h.0.ln_2.bias 1", "h.0.mlp.c_fc.weight 2",
                  "h.0.mlp.c_fc.bias 1", "h.0.mlp.c_proj.weight 2", "h.0.mlp.c_proj.bias 1"));
  EXPECT_EQ(model->parameters()[6].tensor.sizes(), (at::IntArrayRef{16, 48}));
}

TEST(Gpt2, UnitsCoverTheParametersInOrder) {
  auto model = *NewModel(Small(), 1, at::kFloat);

  int next = 0;
  std::vector<std::string> names;
  for (const Unit& unit : model->units()) {
    EXPECT_EQ(unit.first_parameter, next);
    next += unit.num_parameters;
    names.push_back(unit.name);
  }
  EXPECT_EQ(next, static_cast<int>(model->parameters().size()));
  EXPECT_THAT(names, ElementsAre("root", "h.0", "h.1"));
}

TEST(Gpt2, ForwardRunsTheUnitsBetweenTheTwoPartsOfTheRoot) {
  auto model = *NewModel(Small(), 1, at::kFloat);
  RecordingHooks hooks;
  auto [inputs, targets] = Sample();
  model->LossSum(inputs, targets, hooks, std::nullopt);
  EXPECT_THAT(hooks.calls, ElementsAre("before root", "unit 1", "unit 2", "after root"));
}

TEST(Gpt2, RerunOfAUnit_GivesTheSameResult_AlsoWithDropout) {
  ModelSizes config = Small();
  config.dropout = 0.3;
  auto model = *NewModel(config, 1, at::kFloat);
  RecordingHooks hooks;
  hooks.repeats = true;
  auto [inputs, targets] = Sample();
  model->LossSum(inputs, targets, hooks, DropoutKey{.seed = 1});
}

TEST(Gpt2, TargetOfMinusOne_IsIgnored) {
  auto model = *NewModel(Small(), 1, at::kDouble);
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  auto [inputs, targets] = Sample();
  at::Tensor masked = targets.clone();
  masked.narrow(1, 3, kContext - 3).fill_(-1);
  double expected = model->LossSum(inputs.narrow(1, 0, 3), targets.narrow(1, 0, 3), hooks, {}).item<double>();
  EXPECT_NEAR(model->LossSum(inputs, masked, hooks, {}).item<double>(), expected, 1e-12 * expected);
}

TEST(Gpt2, LabModel_HasTheSizeInItsName) {
  auto model = *NewModel({.layers = 6, .heads = 6, .width = 384, .context = 256}, 1, at::kFloat);
  EXPECT_EQ(model->num_elements(), 10'844'160);
}

TEST(Gpt2, InitialWeightsDependOnTheSeedAlone) {
  auto a = *NewModel(Small(), 1, at::kFloat), b = *NewModel(Small(), 1, at::kFloat),
       other = *NewModel(Small(), 2, at::kFloat);
  auto wide = *NewModel(Small(), 1, at::kDouble);
  for (size_t i = 0; i < a->parameters().size(); ++i) {
    at::Tensor weights = a->parameters()[i].tensor;
    EXPECT_TRUE(weights.equal(b->parameters()[i].tensor));
    EXPECT_TRUE(weights.to(at::kDouble).equal(wide->parameters()[i].tensor)) << "fp64 starts from other values";
    EXPECT_EQ(weights.equal(other->parameters()[i].tensor), weights.dim() == 1);
  }
}

TEST(Gpt2, InitialMatricesHaveAStandardDeviationOf002) {
  auto model = *NewModel({.layers = 1, .heads = 2, .width = 128, .context = 64}, 1, at::kFloat);
  for (const NamedTensor& p : model->parameters()) {
    if (p.tensor.dim() != 2) continue;
    EXPECT_NEAR(p.tensor.std().item<double>(), 0.02, 0.001) << p.name;
  }
}

TEST(Gpt2, FreshModel_HasTheLossOfAUniformGuess) {
  auto model = *NewModel(Small(), 1, at::kDouble);
  EXPECT_NEAR(Loss(*model, std::nullopt) / (2 * kContext), std::log(32.0), 0.05);
}

TEST(Gpt2, Logits_DoNotDependOnLaterTokens) {
  auto model = *NewModel(Small(), 1, at::kDouble);
  c10::NoGradGuard no_grad;
  NoUnitHooks hooks;
  at::Tensor inputs = Sample().first, changed = inputs.clone();
  changed.narrow(1, 5, 3).add_(7);

  at::Tensor a = model->Logits(inputs, hooks), b = model->Logits(changed, hooks),
             c = model->Logits(inputs.narrow(1, 0, 5), hooks);

  ASSERT_EQ(a.sizes(), (at::IntArrayRef{2, kContext, 32}));
  EXPECT_TRUE(a.narrow(1, 0, 5).allclose(b.narrow(1, 0, 5), 1e-12, 1e-12));
  EXPECT_TRUE(a.narrow(1, 0, 5).allclose(c, 1e-12, 1e-12));
  EXPECT_FALSE(a.narrow(1, 5, 3).allclose(b.narrow(1, 5, 3)));
}

TEST(Gpt2, DropoutDependsOnItsKeyAlone) {
  ModelSizes config = Small();
  config.dropout = 0.3;
  auto model = *NewModel(config, 1, at::kDouble);

  double first = Loss(*model, DropoutKey{.seed = 1, .step = 2, .first_sample = 3});
  EXPECT_NE(Loss(*model, DropoutKey{.seed = 9, .step = 2, .first_sample = 3}), first);
  EXPECT_NE(Loss(*model, DropoutKey{.seed = 1, .step = 9, .first_sample = 3}), first);
  EXPECT_NE(Loss(*model, DropoutKey{.seed = 1, .step = 2, .first_sample = 9}), first);
  EXPECT_NE(Loss(*model, std::nullopt), first);
  EXPECT_EQ(Loss(*model, DropoutKey{.seed = 1, .step = 2, .first_sample = 3}), first);
}

TEST(Gpt2, LossOfALargeVocabulary_IsThatOfItsLogits) {
  ModelSizes sizes = Small();
  sizes.vocabulary = 9001;
  auto model = *NewModel(sizes, 1, at::kDouble);
  NoUnitHooks hooks;
  auto [inputs, targets] = Sample();
  c10::NoGradGuard no_grad;
  const at::Tensor logits = model->Logits(inputs, hooks).view({-1, sizes.vocabulary});
  const at::Tensor expected = at::cross_entropy_loss(logits, targets.reshape({-1}), {}, at::Reduction::Sum);
  EXPECT_NEAR(model->LossSum(inputs, targets, hooks, {}).item<double>(), expected.item<double>(), 1e-10);
}

TEST(Gpt2, InvalidSizes_AreRefusedWithTheNumbers) {
  ModelSizes odd = Small();
  odd.heads = 3;
  auto model = NewModel(odd, 1, at::kFloat);
  ASSERT_TRUE(absl::IsInvalidArgument(model.status()));
  EXPECT_THAT(model.status().message(), HasSubstr("16 / 3 leaves 1"));

  ModelSizes empty = Small();
  empty.layers = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(NewModel(empty, 1, at::kFloat).status()));
  ModelSizes all = Small();
  all.dropout = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(NewModel(all, 1, at::kFloat).status()));
}

TEST(LoadParameters, ReportsAllProblems) {
  auto model = *NewModel(Small(), 1, at::kFloat);
  std::vector<NamedTensor> values = model->parameters();
  values[0].tensor = at::zeros({3, 3});
  values[1].name = "wpq.weight";
  values.push_back(values[2]);

  absl::Status status = LoadParameters(values, *model);

  ASSERT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("wte.weight is [3, 3], but the model has [32, 16]"));
  EXPECT_THAT(status.message(), HasSubstr("missing: wpe.weight"));
  EXPECT_THAT(status.message(), HasSubstr("not a parameter of this model: wpq.weight"));
  EXPECT_THAT(status.message(), HasSubstr("given twice: ln_f.weight"));
}

}  // namespace
}  // namespace trainyard
