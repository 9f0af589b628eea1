// Recomputed activations give the losses and gradients of stored ones, bit for bit, even if the model's operations use
// different kernels with and without grad mode.
#include "worker/parallel/recompute.h"
#include "worker/model/model_factory.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace trainyard {
namespace {

// Runs units as a strategy does, without its communication.
class RecomputingHooks final : public UnitHooks {
 public:
  explicit RecomputingHooks(const Recompute& recompute, int first_backward = 1)
      : runner_(ApplyRecompute(recompute, first_backward)) {}
  void BeforeRoot() override {}
  at::Tensor AfterRoot(const at::Tensor& y) override { return y; }
  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    return runner_->Run(unit, x, [this, unit, body](const at::Tensor& in, ProductTape* tape) {
      runs.push_back(unit);
      return body(in, tape);
    });
  }
  std::vector<int> runs;

 private:
  const std::unique_ptr<UnitRunner> runner_;
};

struct Case {
  std::string name = "";
  Recompute recompute = {};
  at::ScalarType type = at::kFloat;
  double dropout = 0;
  int threads = 1;
};

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;
  std::vector<int> runs;
};

Outcome RunCase(const Case& c, std::optional<bool> trains_embedding = {}) {
  at::set_num_threads(c.threads);
  // The sizes leave remainders in vector code, and give several threads enough work.
  auto model = *NewModel({.layers = 3, .heads = 3, .width = 57, .context = 65, .vocabulary = 67, .dropout = c.dropout},
                         5, c.type);
  if (trains_embedding == false) {
    for (int i : {0, 1}) model->parameters()[i].tensor.requires_grad_(false);
  }
  at::Tensor tokens = at::empty({3, 66}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) tokens.mutable_data_ptr<int64_t>()[i] = i * i % 67;
  RecomputingHooks hooks(c.recompute);
  Outcome outcome;
  // Twice, so that the second micro-batch adds to the gradients.
  for (uint64_t first_sample : {0, 3}) {
    at::Tensor loss = model->LossSum(tokens.narrow(1, 0, 65).contiguous(), tokens.narrow(1, 1, 65).contiguous(), hooks,
                                     DropoutKey{.seed = 1, .step = 2, .first_sample = first_sample});
    outcome.loss += loss.item<double>();
    loss.backward();
  }
  for (const NamedTensor& parameter : model->parameters()) outcome.gradients.push_back(parameter.tensor.grad());
  outcome.runs = hooks.runs;
  at::set_num_threads(1);
  return outcome;
}

void ExpectSameBits(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.loss, expected.loss);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < found.gradients.size(); ++i) {
    ASSERT_EQ(found.gradients[i].defined(), expected.gradients[i].defined()) << "parameter " << i;
    if (!found.gradients[i].defined()) continue;
    EXPECT_TRUE(found.gradients[i].equal(expected.gradients[i])) << "gradient of parameter " << i;
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (auto [type, type_name] : {std::pair{at::kFloat, "fp32"}, {at::kDouble, "fp64"}, {at::kBFloat16, "bf16"}}) {
    for (double dropout : {0.0, 0.1}) {
      for (int threads : {1, 2}) {
        if (threads > 1 && type != at::kFloat) continue;  // one type suffices: threads choose no other kernels
        for (RecomputeMode mode : {RecomputeMode::kBlocks, RecomputeMode::kSelective}) {
          cases.push_back({.name = std::string(type_name) + (dropout > 0 ? "_dropout" : "") + "_threads" +
                                   std::to_string(threads) +
                                   (mode == RecomputeMode::kBlocks ? "_blocks" : "_selective"),
                           .recompute = {.mode = mode},
                           .type = type,
                           .dropout = dropout,
                           .threads = threads});
        }
      }
    }
  }
  return cases;
}

class RecomputeTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, RecomputeTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST_P(RecomputeTest, ChangesNoBitOfLossAndGradients) {
  Case kept = GetParam();
  kept.recompute = {};

  const Outcome found = RunCase(GetParam());

  ExpectSameBits(found, RunCase(kept));
  // Forward, then each unit again in backward, from the last to the first.
  EXPECT_EQ(found.runs, (std::vector<int>{1, 2, 3, 3, 2, 1, 1, 2, 3, 3, 2, 1}));
}

TEST(Recompute, OfEveryNthUnit_RunsOnlyThoseAgain) {
  const Case kept{.dropout = 0.1};

  for (auto [every, again] : {std::pair{2, std::vector<int>{2}}, {3, {3}}, {4, {}}}) {
    Case some = kept;
    some.recompute = {.mode = RecomputeMode::kBlocks, .every = every};
    const Outcome found = RunCase(some);

    std::vector<int> once = {1, 2, 3};
    once.insert(once.end(), again.begin(), again.end());
    std::vector<int> runs = once;
    runs.insert(runs.end(), once.begin(), once.end());
    EXPECT_EQ(found.runs, runs);
    ExpectSameBits(found, RunCase(kept));
  }
}

TEST(Recompute, AboveFrozenParameters_GivesTheSameGradients) {
  for (RecomputeMode mode : {RecomputeMode::kBlocks, RecomputeMode::kSelective}) {
    ExpectSameBits(RunCase({.recompute = {.mode = mode}}, /*trains_embedding=*/false),
                   RunCase({}, /*trains_embedding=*/false));
  }
}

TEST(Recompute, UnitsThatBackwardDoesNotReach_RunOnce) {
  auto model = *NewModel({.layers = 3, .heads = 1, .width = 8, .context = 8, .vocabulary = 16}, 5, at::kFloat);
  for (const NamedTensor& parameter : model->parameters()) {
    const bool below = parameter.name.starts_with("w") || parameter.name.starts_with("h.0.");
    if (below) at::Tensor(parameter.tensor).set_requires_grad(false);
  }
  RecomputingHooks hooks({.mode = RecomputeMode::kBlocks}, /*first_backward=*/2);
  at::Tensor tokens = at::zeros({1, 8}, at::kLong);

  model->LossSum(tokens, tokens, hooks, std::nullopt).backward();

  EXPECT_THAT(hooks.runs, testing::ElementsAre(1, 2, 3, 3, 2));
}

TEST(Recompute, WithoutGradModeRunsEachUnitOnce) {
  at::NoGradGuard no_grad;
  auto model = *NewModel({.layers = 2, .heads = 1, .width = 8, .context = 8, .vocabulary = 16}, 5, at::kFloat);
  RecomputingHooks hooks({.mode = RecomputeMode::kBlocks});
  at::Tensor tokens = at::zeros({1, 8}, at::kLong);

  model->LossSum(tokens, tokens, hooks, std::nullopt);

  EXPECT_THAT(hooks.runs, testing::ElementsAre(1, 2));
}

TEST(Recompute, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(std::string(RecomputeModeOf("some").status().message()),
              testing::HasSubstr("'some' is not a recompute mode; known: none, blocks, selective"));
}

}  // namespace
}  // namespace trainyard
