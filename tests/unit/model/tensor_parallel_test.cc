// Models whose matrices are divided among tensor ranks, which are threads here. These models must have the loss and
// gradients of the whole model, the same bits in every replica, and one sum for each attention and perceptron in each
// direction.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/model/gradients.h"
#include "tests/unit/model/tensor_ranks.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/recompute.h"

namespace trainyard {
namespace {

using testing::ElementsAreArray;

constexpr int64_t kSequences = 2, kPositions = 8;

struct TensorCase {
  std::string name = {};
  ModelSizes sizes = {};
  int tensor = 2;
  at::ScalarType type = at::kDouble;
  std::optional<at::ScalarType> output = {};
  RecomputeMode recompute = RecomputeMode::kNone;
  bool documents = false, ignores_targets = false;
  std::optional<DropoutKey> dropout = {};
  double tolerance = 1e-12;
  std::vector<std::string> frozen = {};
  bool sequence = false;
};
std::string NameOfCase(const testing::TestParamInfo<TensorCase>& info) { return info.param.name; }

struct TensorOutcome {
  at::Tensor loss = {}, evaluation = {};
  std::vector<at::Tensor> gradients = {};  // undefined: the parameter is frozen
  std::vector<PartParameter> boxes = {};
  int sums = 0, gathers = 0, scatters = 0;  // of the training pass
};

class RunnerHooks final : public UnitHooks {
 public:
  explicit RunnerHooks(RecomputeMode mode) : runner_(ApplyRecompute({.mode = mode}, /*first_backward=*/1)) {}
  void BeforeRoot() override {}
  at::Tensor AfterRoot(const at::Tensor& y) override { return y; }
  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    return runner_->Run(unit, x, body);
  }
  GradientSink* sink() override { return sink_; }
  void set_sink(GradientSink* sink) { sink_ = sink; }

 private:
  std::unique_ptr<UnitRunner> runner_;
  GradientSink* sink_ = nullptr;
};

// Returns the batch, which is the same on every thread.
trainyard::MicroBatch BatchOf(const TensorCase& c) {
  const at::Tensor numbers = at::arange(kSequences * (kPositions + 1), at::kLong).view({kSequences, kPositions + 1});
  const at::Tensor tokens = (numbers * numbers * 7 + numbers * 3).remainder(c.sizes.vocabulary);
  trainyard::MicroBatch batch{.inputs = tokens.narrow(1, 0, kPositions).contiguous(),
                              .targets = tokens.narrow(1, 1, kPositions).contiguous(),
                              .dropout = c.dropout};
  if (c.ignores_targets) batch.targets.narrow(1, 2, 3).fill_(-1);
  if (c.documents) {
    batch.starts = at::zeros({kSequences, kPositions}, at::kLong);
    batch.starts.narrow(1, 3, kPositions - 3).fill_(3);
  }
  return batch;
}

// Returns parameters whose biases are not 0 and whose norms are not 1.
std::vector<NamedTensor> ValuesOf(const TensorCase& c) {
  const std::unique_ptr<Model> model = *NewModel(c.sizes, 1, at::kDouble);
  std::vector<NamedTensor> values;
  for (const NamedTensor& parameter : model->parameters()) {
    const at::Tensor noise = at::arange(parameter.tensor.numel(), at::kDouble).view(parameter.tensor.sizes());
    const double scale = parameter.tensor.dim() == 1 ? 0.2 : 0.0;
    values.push_back({parameter.name, (parameter.tensor.detach() + scale * (noise * 1.7).sin()).to(c.type)});
  }
  return values;
}

TensorOutcome RunModel(const TensorCase& c, Model& model, CountingGroup* group) {
  model.Materialize();
  EXPECT_TRUE(LoadParameters(ValuesOf(c), model).ok());
  if (!c.frozen.empty()) {
    EXPECT_TRUE(Freeze(c.frozen, model).ok());
  }
  if (c.output.has_value()) model.set_output_type(*c.output);
  RunnerHooks hooks(c.recompute);
  const trainyard::MicroBatch batch = BatchOf(c);
  TensorOutcome outcome{.boxes = model.boxes()};
  at::Tensor loss = model.LossSum(batch.inputs, batch.targets, hooks, batch.dropout, batch.starts);
  (loss * 0.5).backward();
  outcome.loss = loss.detach();
  if (group != nullptr) {
    outcome.sums = group->sums;
    outcome.gathers = group->gathers;
    outcome.scatters = group->scatters;
  }
  for (const NamedTensor& parameter : model.parameters()) outcome.gradients.push_back(parameter.tensor.grad());
  c10::NoGradGuard no_grad;
  outcome.evaluation = model.LossSum(batch.inputs, batch.targets, hooks, std::nullopt, batch.starts);
  return outcome;
}

TensorOutcome RunWhole(const TensorCase& c) {
  return RunModel(c, **NewModel(c.sizes, 1, c.type, /*backed=*/false), /*group=*/nullptr);
}

std::unique_ptr<Model> NewPart(const TensorCase& c, CountingGroup& group) {
  const ModelPart part =
      *PartOfRank(c.sizes, {.tensor_rank = group.rank(), .tensor_size = group.size(), .divides_sequence = c.sequence});
  return *NewModelPart(c.sizes, part, 1, c.type, &group);
}

std::vector<TensorOutcome> RunParts(const TensorCase& c) {
  std::vector<TensorOutcome> outcomes(static_cast<size_t>(c.tensor));
  OnTensorRanks(c.tensor, [&](CountingGroup& group) {
    outcomes[static_cast<size_t>(group.rank())] = RunModel(c, *NewPart(c, group), &group);
  });
  return outcomes;
}

// With sequence parallelism, the gradient of a parameter that every rank has whole is the sum over the ranks.
void AddGradientsOfReplicas(std::vector<TensorOutcome>& parts) {
  for (size_t i = 0; i < parts[0].boxes.size(); ++i) {
    if (!parts[0].boxes[i].replicated || !parts[0].gradients[i].defined()) continue;
    at::Tensor sum = parts[0].gradients[i].clone();
    for (size_t rank = 1; rank < parts.size(); ++rank) sum += parts[rank].gradients[i];
    for (TensorOutcome& part : parts) part.gradients[i] = sum;
  }
}

at::Tensor BoxIn(at::Tensor whole, const PartParameter& box) {
  for (size_t d = 0; d < box.shape.size(); ++d)
    whole = whole.narrow(static_cast<int64_t>(d), box.start[d], box.shape[d]);
  return whole;
}

class TensorParallel : public testing::TestWithParam<TensorCase> {};

TEST_P(TensorParallel, LossAndGradients_AreThoseOfTheWholeModel) {
  const TensorOutcome whole = RunWhole(GetParam());

  std::vector<TensorOutcome> parts = RunParts(GetParam());

  if (GetParam().sequence) AddGradientsOfReplicas(parts);
  for (const TensorOutcome& part : parts) {
    EXPECT_LE(RelativeDifference(part.loss, whole.loss), GetParam().tolerance);
    EXPECT_LE(RelativeDifference(part.evaluation, whole.evaluation), GetParam().tolerance);
    ASSERT_FALSE(part.gradients.empty());
    for (size_t i = 0; i < part.gradients.size(); ++i) {
      const PartParameter& box = part.boxes[i];
      const at::Tensor& expected = whole.gradients[static_cast<size_t>(box.number)];
      ASSERT_EQ(part.gradients[i].defined(), expected.defined()) << box.name;
      if (!expected.defined()) continue;
      // Relative to the largest element of the whole gradient.
      const double scale = expected.abs().max().to(at::kDouble).item<double>();
      EXPECT_GT(scale, 0) << box.name;
      const at::Tensor difference = (part.gradients[i] - BoxIn(expected, box)).abs().max().to(at::kDouble);
      EXPECT_LE(difference.item<double>(), GetParam().tolerance * scale) << box.name;
    }
  }
}

TEST_P(TensorParallel, ReplicasHaveTheSameBits) {
  const std::vector<TensorOutcome> parts = RunParts(GetParam());

  for (const TensorOutcome& part : parts) {
    EXPECT_TRUE(part.loss.equal(parts[0].loss));
    EXPECT_TRUE(part.evaluation.equal(parts[0].evaluation));
    for (size_t i = 0; i < part.boxes.size(); ++i) {
      if (GetParam().sequence || !part.boxes[i].replicated || !part.gradients[i].defined()) continue;
      EXPECT_TRUE(part.gradients[i].equal(parts[0].gradients[i])) << part.boxes[i].name;
    }
  }
}

class TensorParallelSums : public TensorParallel {};

TEST_P(TensorParallelSums, HasOneSumPerAttentionPerceptronAndDirection) {
  const std::vector<TensorOutcome> parts = RunParts(GetParam());

  const int per_pass = 2 * static_cast<int>(GetParam().sizes.layers);
  const int again = GetParam().recompute == RecomputeMode::kBlocks ? per_pass : 0;
  for (const TensorOutcome& part : parts) {
    // In addition to those of the layers, forward has the sum of the embedding and backward that of the head.
    EXPECT_EQ(part.sums, 2 * (per_pass + 1) + again);
    EXPECT_EQ(part.gathers, 1);
  }
}

TEST(SequenceParallelSums, ReducesAndScattersInsteadOfAdding_AndGathersInputsOfColumnProductsAgain) {
  for (const RecomputeMode recompute : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kBlocks}) {
    const std::vector<TensorOutcome> parts =
        RunParts({.sizes = {.layers = 2, .heads = 4, .width = 16, .context = kPositions, .vocabulary = 37},
                  .recompute = recompute,
                  .sequence = true});

    const int per_pass = 2 * 2, again = recompute == RecomputeMode::kBlocks ? per_pass : 0;
    for (const TensorOutcome& part : parts) {
      EXPECT_EQ(part.sums, 0);
      EXPECT_EQ(part.scatters, 2 * (per_pass + 1) + again);
      // Forward gathers the input of each column product; backward gathers it again, and the gradient of each row
      // product. The other four are the gradient of the embedding, the input of the head in both directions, and the
      // statistics of the loss.
      EXPECT_EQ(part.gathers, 3 * per_pass + again + 4);
    }
  }
}

ModelSizes TensorGpt2(int64_t vocabulary = 37, int64_t heads = 4) {
  return {.layers = 2, .heads = heads, .width = 16, .context = kPositions, .vocabulary = vocabulary};
}
ModelSizes WithDropout(ModelSizes sizes) {
  sizes.dropout = 0.2;
  return sizes;
}
ModelSizes TensorLlama(AttentionBias bias = AttentionBias::kNone, bool tied = false) {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = 2,
                             .heads = 4,
                             .width = 20,
                             .context = kPositions,
                             .vocabulary = 33,
                             .kv_heads = 2,
                             .head_width = 6,
                             .inner = 27,
                             .tied = tied,
                             .attention_bias = bias,
                             .mlp_bias = bias == AttentionBias::kAll});
}
ModelSizes WithKvHeads(ModelSizes sizes, int64_t kv_heads) {
  sizes.kv_heads = kv_heads;
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TensorParallel,
    testing::Values(
        TensorCase{.name = "gpt2", .sizes = TensorGpt2()},
        TensorCase{.name = "gpt2_4", .sizes = TensorGpt2(), .tensor = 4},
        TensorCase{.name = "gpt2_large_vocabulary", .sizes = TensorGpt2(8195)},
        TensorCase{.name = "gpt2_blocks", .sizes = TensorGpt2(), .recompute = RecomputeMode::kBlocks},
        TensorCase{.name = "gpt2_selective", .sizes = TensorGpt2(), .recompute = RecomputeMode::kSelective},
        TensorCase{.name = "gpt2_documents", .sizes = TensorGpt2(), .documents = true, .ignores_targets = true},
        TensorCase{.name = "gpt2_dropout_4",
                   .sizes = WithDropout(TensorGpt2()),
                   .tensor = 4,
                   .dropout = DropoutKey{.seed = 3, .step = 2}},
        TensorCase{.name = "gpt2_dropout_blocks_documents",
                   .sizes = WithDropout(TensorGpt2()),
                   .recompute = RecomputeMode::kBlocks,
                   .documents = true,
                   .dropout = DropoutKey{.seed = 3, .step = 2}},
        TensorCase{.name = "gpt2_frozen", .sizes = TensorGpt2(), .frozen = {"w*", "h.0.*", "h.1.mlp.c_fc.*"}},
        TensorCase{.name = "gpt2_fp32", .sizes = TensorGpt2(), .type = at::kFloat, .tolerance = 2e-5},
        TensorCase{.name = "gpt2_fp32_large_vocabulary",
                   .sizes = TensorGpt2(8195),
                   .type = at::kFloat,
                   .ignores_targets = true,
                   .tolerance = 2e-5},
        TensorCase{
            .name = "gpt2_bf16", .sizes = TensorGpt2(), .type = at::kBFloat16, .output = at::kFloat, .tolerance = 0.05},
        TensorCase{.name = "llama", .sizes = TensorLlama()},
        TensorCase{.name = "llama_4", .sizes = WithKvHeads(TensorLlama(), 4), .tensor = 4},
        TensorCase{.name = "llama_tied_biases", .sizes = TensorLlama(AttentionBias::kQkv, /*tied=*/true)},
        TensorCase{.name = "llama_all_biases_documents",
                   .sizes = TensorLlama(AttentionBias::kAll),
                   .documents = true,
                   .ignores_targets = true},
        TensorCase{
            .name = "llama_blocks", .sizes = TensorLlama(AttentionBias::kAll), .recompute = RecomputeMode::kBlocks},
        TensorCase{.name = "llama_selective", .sizes = TensorLlama(), .recompute = RecomputeMode::kSelective},
        TensorCase{
            .name = "llama_fp32", .sizes = TensorLlama(AttentionBias::kAll), .type = at::kFloat, .tolerance = 5e-5},
        TensorCase{.name = "llama_bf16",
                   .sizes = TensorLlama(AttentionBias::kQkv),
                   .type = at::kBFloat16,
                   .output = at::kFloat,
                   .tolerance = 0.05}),
    NameOfCase);

// 2 x 8 rows: three ranks have 6, 6 and 4, and two rows of padding; a rank's rows begin inside of a sequence.
INSTANTIATE_TEST_SUITE_P(
    Sequence, TensorParallel,
    testing::Values(TensorCase{.name = "gpt2", .sizes = TensorGpt2(), .sequence = true},
                    TensorCase{.name = "gpt2_3_dropout_documents",
                               .sizes = WithDropout(
                                   {.layers = 2, .heads = 3, .width = 18, .context = kPositions, .vocabulary = 37}),
                               .tensor = 3,
                               .documents = true,
                               .ignores_targets = true,
                               .dropout = DropoutKey{.seed = 3, .step = 2, .first_sample = 6},
                               .sequence = true},
                    TensorCase{.name = "gpt2_4_large_vocabulary_selective",
                               .sizes = WithDropout(TensorGpt2(8195)),
                               .tensor = 4,
                               .recompute = RecomputeMode::kSelective,
                               .dropout = DropoutKey{.seed = 3, .step = 2},
                               .sequence = true},
                    TensorCase{.name = "gpt2_frozen",
                               .sizes = TensorGpt2(),
                               .frozen = {"w*", "h.0.*", "h.1.mlp.c_fc.*", "h.1.attn.c_proj.bias"},
                               .sequence = true},
                    TensorCase{.name = "gpt2_fp32_blocks",
                               .sizes = TensorGpt2(),
                               .type = at::kFloat,
                               .recompute = RecomputeMode::kBlocks,
                               .tolerance = 2e-5,
                               .sequence = true},
                    TensorCase{.name = "gpt2_bf16",
                               .sizes = TensorGpt2(),
                               .type = at::kBFloat16,
                               .output = at::kFloat,
                               .tolerance = 0.05,
                               .sequence = true},
                    TensorCase{.name = "llama_documents",
                               .sizes = TensorLlama(AttentionBias::kAll),
                               .documents = true,
                               .ignores_targets = true,
                               .sequence = true},
                    TensorCase{.name = "llama_tied_4",
                               .sizes = WithKvHeads(TensorLlama(AttentionBias::kQkv, /*tied=*/true), 4),
                               .tensor = 4,
                               .recompute = RecomputeMode::kSelective,
                               .sequence = true}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Cases, TensorParallelSums,
    testing::Values(TensorCase{.name = "gpt2", .sizes = TensorGpt2()},
                    TensorCase{.name = "gpt2_large_vocabulary", .sizes = TensorGpt2(8195)},
                    TensorCase{.name = "gpt2_blocks", .sizes = TensorGpt2(), .recompute = RecomputeMode::kBlocks},
                    TensorCase{.name = "gpt2_selective", .sizes = TensorGpt2(), .recompute = RecomputeMode::kSelective},
                    TensorCase{.name = "llama", .sizes = TensorLlama()},
                    TensorCase{
                        .name = "llama_selective", .sizes = TensorLlama(), .recompute = RecomputeMode::kSelective}),
    NameOfCase);

// Records the order in which gradients are completed.
class OrderedSink final : public GradientSink {
 public:
  explicit OrderedSink(const Model& model) : model_(model) {}
  Place Claim(int parameter) override {
    const at::Tensor& tensor = model_.parameters()[static_cast<size_t>(parameter)].tensor;
    return {.tensor = places_.emplace(parameter, at::empty_like(tensor.detach())).first->second};
  }
  void Done(int parameter) override { order.push_back(parameter); }
  std::vector<int> order;

 private:
  const Model& model_;
  std::map<int, at::Tensor> places_;
};

TEST(TensorParallelSink, GradientsAreCompletedInReadyOrder) {
  for (const auto& [sizes, sequence] : {std::pair{TensorGpt2(), false},
                                        {TensorLlama(AttentionBias::kAll), false},
                                        {TensorGpt2(), true},
                                        {TensorLlama(AttentionBias::kAll), true}}) {
    const TensorCase c{.sizes = sizes, .type = at::kFloat, .sequence = sequence};
    OnTensorRanks(2, [&](CountingGroup& group) {
      const std::unique_ptr<Model> model = NewPart(c, group);
      model->Materialize();
      RunnerHooks hooks(RecomputeMode::kNone);
      OrderedSink sink(*model);
      hooks.set_sink(&sink);
      const trainyard::MicroBatch batch = BatchOf(c);

      model->LossSum(batch.inputs, batch.targets, hooks, std::nullopt).backward();

      std::vector<int> expected;
      for (const int number : model->ReadyOrder()) {
        if (!model->parameters()[static_cast<size_t>(number)].tensor.grad().defined()) expected.push_back(number);
      }
      EXPECT_GT(expected.size(), 20U);
      EXPECT_THAT(sink.order, ElementsAreArray(expected));
    });
  }
}

TEST(TensorGroupErrors, LeaveBackwardAsUnitErrors) {
  const TensorCase c{.sizes = TensorGpt2()};
  OnTensorRanks(
      2,
      [&](CountingGroup& group) {
        const std::unique_ptr<Model> model = NewPart(c, group);
        model->Materialize();
        NoUnitHooks hooks;
        const trainyard::MicroBatch batch = BatchOf(c);
        const at::Tensor loss = model->LossSum(batch.inputs, batch.targets, hooks, std::nullopt);
        group.communicator.Abort("the generation is over");

        try {
          loss.backward();
          ADD_FAILURE() << "backward returned without an error";
        } catch (const UnitError& error) {
          EXPECT_TRUE(absl::IsAborted(error.status())) << error.status();
        }
      },
      /*meets_at_end=*/false);
}

TEST(TensorGroupErrors, PartWithoutAGroup_RefusesToRun_AndToScoreTokens) {
  const ModelPart part = *PartOfRank(TensorGpt2(), {.tensor_size = 2});
  const std::unique_ptr<Model> model = *NewModelPart(TensorGpt2(), part, 1, at::kFloat, /*tensor_group=*/nullptr);
  model->Materialize();
  NoUnitHooks hooks;
  const trainyard::MicroBatch batch = BatchOf({.sizes = TensorGpt2()});

  EXPECT_THROW(model->LossSum(batch.inputs, batch.targets, hooks, std::nullopt), c10::Error);
  EXPECT_THROW(model->Logits(batch.inputs, hooks), c10::Error);
}

TEST(TensorParallelSizes, WhatCannotBeDivided_IsRefusedWithAllItsProblems) {
  ModelSizes sizes = TensorLlama();
  sizes.vocabulary = 3;

  const absl::Status status = PartOfRank(sizes, {.tensor_size = 4}).status();

  EXPECT_THAT(status.message(), testing::HasSubstr("tensor 4 does not divide the 2 heads of keys and values"));
  EXPECT_THAT(status.message(), testing::HasSubstr("tensor 4 is more than the 3 tokens of the vocabulary"));
}

}  // namespace
}  // namespace trainyard
