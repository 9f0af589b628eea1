// Pipelines, tensor parallelism and both, with every strategy of data parallelism and threads as ranks: the losses,
// norms and parameters must be those of one rank that does all the work.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/parity/forwarding_communicator.h"
#include "tests/parity/stores.h"
#include "worker/collectives/group.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/model/initial_values.h"
#include "worker/parallel/communicator_tensor_group.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"
#include "worker/parallel/pipeline_executor.h"

namespace trainyard {
namespace {

constexpr int64_t kSamples = 2;  // of a micro-batch
constexpr int64_t kTokens = 8;
constexpr int kSteps = 4;

enum class Family { kTinyGpt2, kTinyLlama, kTiedLlama };

struct Layout {
  MeshShape shape = {};
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;
  Strategy strategy = Strategy::kDdp;
  int64_t micro_batches = 4;  // of a step, all data ranks together
  Family family = Family::kTinyGpt2;
  RecomputeMode recompute = RecomputeMode::kNone;
  double dropout = 0;
  std::vector<std::string> freeze = {};
  at::ScalarType type = at::kDouble;
  bool reduce_scatter = true;
  int64_t bucket_elements = 2000;
  int64_t persist_elements = 0;
  std::vector<int> split = {};
  bool documents = false;  // each sequence has two documents, and one target is ignored
  bool sequence = false;   // tensor ranks divide the sequence
  int64_t tokens = kTokens;
  bool leaves_out_tensor_sums = false;  // a defect: gradients are not added over the tensor ranks

  int world() const { return shape.pp * shape.dp_replicate * shape.dp_shard * shape.tp; }
};

std::string NameOf(const Layout& layout) {
  const MeshShape& shape = layout.shape;
  std::string name =
      absl::StrCat("pp", shape.pp, "x", layout.chunks, "_r", shape.dp_replicate, "_s", shape.dp_shard, "_tp", shape.tp,
                   "_", ScheduleName(layout.schedule), "_", StrategyName(layout.strategy), "_m", layout.micro_batches,
                   "_family", static_cast<int>(layout.family));
  if (layout.recompute != RecomputeMode::kNone)
    absl::StrAppend(&name, "_recompute", static_cast<int>(layout.recompute));
  if (layout.dropout > 0) absl::StrAppend(&name, "_dropout");
  if (!layout.freeze.empty()) absl::StrAppend(&name, "_frozen", layout.freeze.size());
  if (!layout.reduce_scatter) absl::StrAppend(&name, "_allreduce");
  if (layout.persist_elements > 0) absl::StrAppend(&name, "_persist", layout.persist_elements);
  if (layout.documents) absl::StrAppend(&name, "_documents");
  if (!layout.split.empty()) absl::StrAppend(&name, "_split");
  if (layout.type == at::kFloat) absl::StrAppend(&name, "_fp32");
  if (layout.sequence) absl::StrAppend(&name, "_sequence");
  if (layout.tokens != kTokens) absl::StrAppend(&name, "_tokens", layout.tokens);
  return name;
}

ModelSizes SizesOf(const Layout& layout) {
  ModelSizes sizes{.layers = 4, .heads = 4, .width = 16, .context = kTokens, .vocabulary = 37};
  sizes.dropout = layout.dropout;
  if (layout.family == Family::kTinyGpt2) return sizes;
  sizes.family = ModelFamily::kLlama;
  sizes.kv_heads = 4;
  sizes.head_width = 4;
  sizes.inner = 30;
  sizes.norm_eps = 1e-5;
  sizes.tied = layout.family == Family::kTiedLlama;
  return sizes;
}

MicroBatch BatchOf(int64_t step, int64_t index, const Layout& layout) {
  const int64_t length = layout.tokens;
  at::Tensor tokens = at::empty({kSamples, length + 1}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = (index * 7 + i * i + (i % 5 == 0 ? step * 31 : 0)) % 37;
  }
  MicroBatch batch{.inputs = tokens.narrow(1, 0, length).contiguous(),
                   .targets = tokens.narrow(1, 1, length).contiguous()};
  if (layout.documents) {
    batch.starts = at::zeros_like(batch.inputs);
    batch.starts.narrow(1, 3, length - 3).fill_(3);
    batch.targets.select(1, 2).fill_(-1);
  }
  return batch;
}

struct Outcome {
  std::vector<double> losses, norms;  // the losses of this rank; 0 where it computes none
  double evaluation = 0;
  std::vector<std::pair<StateEntry, at::Tensor>> parameters;  // of data rank 0
  std::string differs;  // a parameter that is not the same on all ranks that hold it
};

// Adds nothing: AllReduceSum leaves the values unchanged.
class WithoutSums final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Collective> AllReduceSum(const at::Tensor&) override { return Barrier(); }
};

struct OneRank {
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<WithoutSums> without_sums;
  OwnedPipelineChannels channels;
  std::unique_ptr<CommunicatorTensorGroup> tensor;
  std::unique_ptr<Model> model;
  std::unique_ptr<DataParallel> strategy;
  std::unique_ptr<PipelineExecutor> executor;
};

// Gives wrong initial values to parameters that another rank has too: the strategy must replace them by the values of
// the first tensor rank and the first stage.
void SpoilCopies(uint64_t seed, Model& model) {
  std::set<int> spoilt;
  for (const PartParameter& box : model.boxes()) {
    const bool is_copy = (box.replicated && model.part().tensor_rank > 0) || (box.tied && !model.part().embeds);
    if (is_copy) spoilt.insert(box.number);
  }
  model.set_initial_values(
      [spoilt, drawn = DrawInitialValues(model.description(), seed)](int number, const at::Tensor& out) {
        drawn(number, out);
        if (spoilt.contains(number)) out.add_(0.5);
      });
}

absl::StatusOr<std::unique_ptr<OneRank>> MakeRank(const Layout& layout, const Mesh& mesh, int rank,
                                                  MemoryStore& store) {
  auto made = std::make_unique<OneRank>();
  const GroupOptions options{.world_size = mesh.world_size(), .rank = rank, .store = &store};
  ASSIGN_OR_RETURN(made->groups, JoinMesh(mesh, 0, options));
  ASSIGN_OR_RETURN(made->channels, JoinPipeline(mesh, /*wraps=*/layout.chunks > 1, options));
  if (layout.shape.tp > 1)
    made->tensor = std::make_unique<CommunicatorTensorGroup>(*made->groups->tensor, Clock::GetSteadyClock());
  const PipelineLayout pipeline{.schedule = layout.schedule, .chunks_per_rank = layout.chunks, .split = layout.split};
  // At first only the first data rank has the correct weights.
  const uint64_t seed = mesh.DataRank(rank) == 0 ? 1 : 99;
  ASSIGN_OR_RETURN(
      made->model,
      DivideModel({.sizes = SizesOf(layout), .seed = seed, .type = layout.type, .divides_sequence = layout.sequence},
                  mesh, rank, pipeline, made->tensor.get()));
  SpoilCopies(seed, *made->model);
  RETURN_IF_ERROR(Freeze(layout.freeze, *made->model));
  ParallelOptions parallel{.recompute = {.mode = layout.recompute},
                           .data = {.strategy = layout.strategy,
                                    .bucket_elements = layout.bucket_elements,
                                    .reduce_scatter = layout.reduce_scatter,
                                    .persist_elements = layout.persist_elements},
                           .update = {.clip_norm = 0.5}};
  MeshCommunicators communicators = CommunicatorsOf(*made->groups);
  if (layout.leaves_out_tensor_sums) {
    made->without_sums = std::make_unique<WithoutSums>(*communicators.tensor);
    communicators.tensor = made->without_sums.get();
  }
  ASSIGN_OR_RETURN(made->strategy, Parallelize(*made->model, mesh, communicators, parallel));
  made->executor = NewExecutor(mesh, rank, pipeline, *made->model, *made->strategy, made->channels.channels);
  return made;
}

absl::StatusOr<Outcome> RunRank(const Layout& layout, const Mesh& mesh, int rank, MemoryStore& store) {
  ASSIGN_OR_RETURN(std::unique_ptr<OneRank> made, MakeRank(layout, mesh, rank, store));
  const bool reports = made->executor->has_losses() && mesh.Coordinate(rank, Axis::kTensor) == 0;
  const Deal deal = DealStep(layout.micro_batches, 1, mesh.DataRank(rank), mesh.num_data_ranks());
  const uint64_t tokens = static_cast<uint64_t>(layout.micro_batches * kSamples * layout.tokens);
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    double loss_sum = 0;
    made->strategy->BeginStep(tokens);
    const auto batch_of = [&](int64_t index) {
      MicroBatch batch = BatchOf(step, index, layout);
      if (layout.dropout > 0) {
        batch.dropout = DropoutKey{
            .seed = 5, .step = static_cast<uint64_t>(step), .first_sample = static_cast<uint64_t>(index * kSamples)};
      }
      return batch;
    };
    RETURN_IF_ERROR(made->executor->RunStep(
        {.micro_batches = deal.micro_batches, .num_rounds = deal.num_rounds}, batch_of,
        [&](int64_t, const at::Tensor& loss) { loss_sum += reports ? loss.item<double>() : 0; }));
    RETURN_IF_ERROR(made->strategy->FinishBackward());
    ASSIGN_OR_RETURN(const StepOutput output, made->strategy->Step({.lr = 1e-2, .num_tokens = tokens}));
    outcome.losses.push_back(loss_sum);
    outcome.norms.push_back(output.gradient_norm);
  }
  {
    c10::NoGradGuard no_grad;
    const Deal batches = DealStep(3, 1, mesh.DataRank(rank), mesh.num_data_ranks());
    RETURN_IF_ERROR(made->executor->Evaluate(
        {.micro_batches = batches.micro_batches, .num_rounds = batches.num_rounds},
        [&](int64_t index) { return BatchOf(99, index, layout); },
        [&](int64_t, const at::Tensor& loss) { outcome.evaluation += reports ? loss.item<double>() : 0; }));
    RETURN_IF_ERROR(made->strategy->AwaitParameters());
    ASSIGN_OR_RETURN(const std::optional<ParameterDifference> difference, made->strategy->state().CompareParameters());
    if (difference.has_value()) outcome.differs = difference->name;
    // Only data rank 0 is passed the parameters, and sharded ones are passed whole.
    RETURN_IF_ERROR(made->strategy->state().VisitParameters([&](const StateEntry& entry, const at::Tensor& values) {
      outcome.parameters.emplace_back(entry, values.detach().clone());
      return absl::OkStatus();
    }));
  }
  RETURN_IF_ERROR(made->groups->world->Barrier()->Wait());
  return outcome;
}

std::vector<Outcome> Train(const Layout& layout) {
  const Mesh mesh = *Mesh::Create(layout.shape, layout.world());
  MemoryStore store;
  std::vector<absl::StatusOr<Outcome>> results(static_cast<size_t>(layout.world()), absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.world(); ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      results[static_cast<size_t>(rank)] = RunRank(layout, mesh, rank, store);
      if (!results[static_cast<size_t>(rank)].ok()) store.EndGeneration();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Outcome> outcomes;
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) outcomes.push_back(*result);
  }
  return outcomes.size() == results.size() ? outcomes : std::vector<Outcome>{};
}

// The same computation on one rank.
Layout OnOneRank(Layout layout) {
  layout.shape = {};
  layout.schedule = ScheduleKind::kOneForwardOneBackward;
  layout.chunks = 1;
  layout.split = {};
  layout.strategy = Strategy::kDdp;
  layout.recompute = RecomputeMode::kNone;
  return layout;
}

at::Tensor ViewOf(const Box& box, at::Tensor whole) {
  for (size_t i = 0; i < box.start.size(); ++i) {
    whole = whole.narrow(static_cast<int64_t>(i), box.start[i], box.size[i]);
  }
  return whole;
}

// Checks that the boxes of `ranks` have the values of `expected`, that they cover every element of the model, and that
// copies of a box have the same bits.
void ExpectSameParameters(const Outcome& expected, const std::vector<Outcome>& ranks, double tolerance) {
  std::map<std::string, at::Tensor> whole, seen;
  for (const auto& [entry, tensor] : expected.parameters) {
    whole[entry.name] = tensor;
    seen[entry.name] = at::zeros_like(tensor);
  }
  std::map<std::pair<std::string, std::vector<int64_t>>, at::Tensor> copies;
  for (const Outcome& rank : ranks) {
    EXPECT_EQ(rank.differs, "");
    for (const auto& [entry, tensor] : rank.parameters) {
      ASSERT_TRUE(whole.contains(entry.name)) << entry.name;
      EXPECT_TRUE(tensor.allclose(ViewOf(entry.box, whole.at(entry.name)), tolerance * 1e3, tolerance)) << entry.name;
      ViewOf(entry.box, seen.at(entry.name)).fill_(1);
      const auto [copy, is_first] = copies.emplace(std::make_pair(entry.name, entry.box.start), tensor);
      if (!is_first) {
        EXPECT_TRUE(tensor.equal(copy->second)) << "the copies of " << entry.name << " differ";
      }
    }
  }
  for (const auto& [name, tensor] : seen) EXPECT_TRUE(tensor.all().item<bool>()) << name << " is not on any rank";
}

// For messages of the test framework.
void PrintTo(const Layout& layout, std::ostream* out) { *out << NameOf(layout); }

class ModelParallel : public testing::TestWithParam<Layout> {};

TEST_P(ModelParallel, GivesTheNumbersOfOneRank) {
  const Layout& layout = GetParam();
  const double tolerance = layout.type == at::kDouble ? 1e-10 : 1e-5;
  const std::vector<Outcome> expected = Train(OnOneRank(layout)), ranks = Train(layout);
  ASSERT_EQ(expected.size(), 1u);
  ASSERT_FALSE(ranks.empty());
  for (int step = 0; step < kSteps; ++step) {
    const size_t i = static_cast<size_t>(step);
    double loss = 0;
    for (const Outcome& rank : ranks) loss += rank.losses[i];
    EXPECT_NEAR(loss, expected[0].losses[i], tolerance * expected[0].losses[i]) << "step " << step + 1;
    for (const Outcome& rank : ranks) {
      EXPECT_EQ(rank.norms[i], ranks[0].norms[i]);
      EXPECT_NEAR(rank.norms[i], expected[0].norms[i], tolerance * 100 * expected[0].norms[i]) << "step " << step + 1;
    }
  }
  double evaluation = 0;
  for (const Outcome& rank : ranks) evaluation += rank.evaluation;
  EXPECT_NEAR(evaluation, expected[0].evaluation, tolerance * 100 * expected[0].evaluation);
  ExpectSameParameters(expected[0], ranks, tolerance);
}

std::vector<Layout> PipelineLayouts() {
  using enum ScheduleKind;
  std::vector<Layout> layouts;
  const auto add = [&](Layout layout) { layouts.push_back(std::move(layout)); };
  // Pipelines.
  add({.shape = {.pp = 2}});
  add({.shape = {.pp = 2}, .micro_batches = 1});
  add({.shape = {.pp = 2}, .schedule = kGpipe, .micro_batches = 3});
  add({.shape = {.pp = 4}, .micro_batches = 3, .family = Family::kTinyLlama});
  add({.shape = {.pp = 4}, .micro_batches = 8, .family = Family::kTiedLlama, .type = at::kFloat});
  add({.shape = {.pp = 2}, .schedule = kInterleaved, .chunks = 2});
  add({.shape = {.pp = 2}, .recompute = RecomputeMode::kBlocks, .dropout = 0.2});
  add({.shape = {.pp = 2}, .freeze = {"wte.weight", "wpe.weight", "h.0.*", "h.1.*"}});
  add({.shape = {.pp = 2}, .freeze = {"h.2.*", "h.3.*", "ln_f.*"}});
  add({.shape = {.pp = 3}, .micro_batches = 5, .recompute = RecomputeMode::kSelective});
  // Pipelines and data ranks.
  add({.shape = {.pp = 2, .dp_replicate = 2}, .micro_batches = 5});
  add({.shape = {.pp = 2, .dp_shard = 2}, .strategy = Strategy::kZero1, .micro_batches = 5});
  add({.shape = {.pp = 2, .dp_shard = 2}, .strategy = Strategy::kZero1, .micro_batches = 1, .reduce_scatter = false});
  add({.shape = {.pp = 2, .dp_shard = 3}, .strategy = Strategy::kZero2, .micro_batches = 7, .dropout = 0.1});
  add({.shape = {.pp = 2, .dp_shard = 2},
       .schedule = kInterleaved,
       .chunks = 2,
       .strategy = Strategy::kZero1,
       .micro_batches = 8});
  add({.shape = {.pp = 2, .dp_shard = 2},
       .schedule = kInterleaved,
       .chunks = 2,
       .strategy = Strategy::kZero2,
       .micro_batches = 8,
       .family = Family::kTiedLlama});
  return layouts;
}

std::vector<Layout> Layouts() {
  using enum ScheduleKind;
  std::vector<Layout> layouts = PipelineLayouts();
  const auto add = [&](Layout layout) { layouts.push_back(std::move(layout)); };
  // Tensor ranks.
  add({.shape = {.tp = 2}});
  add({.shape = {.tp = 4}, .family = Family::kTinyLlama});
  add({.shape = {.tp = 2}, .family = Family::kTiedLlama, .recompute = RecomputeMode::kSelective});
  add({.shape = {.tp = 2}, .recompute = RecomputeMode::kSelective, .dropout = 0.2});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero1, .micro_batches = 3});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero2, .micro_batches = 4});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kFsdp, .micro_batches = 3});
  add({.shape = {.dp_replicate = 2, .tp = 2}, .micro_batches = 4, .freeze = {"wpe.weight", "h.*.ln_1.*"}});
  // All together.
  add({.shape = {.pp = 2, .tp = 2}});
  add({.shape = {.pp = 2, .dp_replicate = 2, .tp = 2}, .micro_batches = 6, .family = Family::kTinyLlama});
  add({.shape = {.pp = 2, .dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero1, .micro_batches = 5});
  add({.shape = {.pp = 2, .dp_shard = 2, .tp = 2},
       .schedule = kInterleaved,
       .chunks = 2,
       .strategy = Strategy::kZero1,
       .micro_batches = 4,
       .family = Family::kTiedLlama,
       .recompute = RecomputeMode::kBlocks});
  for (const Strategy strategy : {Strategy::kZero3, Strategy::kFsdp}) {
    add({.shape = {.pp = 2, .dp_shard = 2}, .strategy = strategy, .micro_batches = 5});
    add({.shape = {.pp = 2, .dp_shard = 2},
         .schedule = kInterleaved,
         .chunks = 2,
         .strategy = strategy,
         .micro_batches = 4,
         .family = Family::kTiedLlama});
  }
  add({.shape = {.pp = 2, .dp_replicate = 2, .dp_shard = 2}, .strategy = Strategy::kHsdp, .micro_batches = 6});
  add({.shape = {.pp = 3}, .schedule = kZeroBubble, .micro_batches = 6});
  add({.shape = {.pp = 2}, .schedule = kZeroBubble, .micro_batches = 6, .family = Family::kTinyLlama});
  add({.shape = {.pp = 2, .dp_shard = 2}, .schedule = kSimulated, .strategy = Strategy::kZero1, .micro_batches = 8});
  add({.shape = {.pp = 2}, .split = {1, 3}});
  for (const Family family : {Family::kTinyGpt2, Family::kTinyLlama}) {
    add({.shape = {.pp = 3, .tp = 2}, .family = family, .documents = true});
  }
  for (const Family family : {Family::kTinyGpt2, Family::kTiedLlama}) {
    add({.shape = {.pp = 2, .dp_shard = 2}, .strategy = Strategy::kZero3, .family = family, .persist_elements = 1000});
  }
  add({.shape = {.dp_shard = 2, .tp = 4},
       .strategy = Strategy::kZero3,
       .family = Family::kTinyLlama,
       .persist_elements = 120});
  return layouts;
}

// Tensor ranks that divide the sequence.
std::vector<Layout> SequenceLayouts() {
  std::vector<Layout> layouts;
  const auto add = [&](Layout layout) {
    layout.sequence = true;
    layouts.push_back(std::move(layout));
  };
  add({.shape = {.tp = 2}});
  add({.shape = {.tp = 2}, .recompute = RecomputeMode::kBlocks, .dropout = 0.2});
  add({.shape = {.tp = 4}, .family = Family::kTinyLlama, .type = at::kFloat});
  // 2 x 7 rows are not divisible by 4.
  add({.shape = {.tp = 4}, .dropout = 0.1, .documents = true, .tokens = 7});
  add({.shape = {.pp = 2, .tp = 2}, .recompute = RecomputeMode::kSelective, .dropout = 0.2});
  add({.shape = {.pp = 2, .tp = 2},
       .schedule = ScheduleKind::kInterleaved,
       .chunks = 2,
       .family = Family::kTiedLlama,
       .tokens = 5});
  add({.shape = {.pp = 2, .tp = 2}, .schedule = ScheduleKind::kZeroBubble, .family = Family::kTinyLlama});
  add({.shape = {.pp = 2, .tp = 4}, .micro_batches = 3, .tokens = 7});
  add({.shape = {.dp_replicate = 2, .tp = 2}, .freeze = {"wpe.weight", "h.*.ln_1.*", "h.3.*"}});
  add({.shape = {.pp = 2, .tp = 2}, .freeze = {"h.2.*", "h.3.*", "ln_f.*"}});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero1, .micro_batches = 3, .dropout = 0.1});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero1, .micro_batches = 1, .reduce_scatter = false});
  add({.shape = {.pp = 2, .dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero1, .micro_batches = 5});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero2, .family = Family::kTiedLlama});
  add({.shape = {.dp_shard = 2, .tp = 2}, .strategy = Strategy::kZero3, .micro_batches = 3, .persist_elements = 120});
  add({.shape = {.pp = 2, .dp_shard = 2, .tp = 2}, .strategy = Strategy::kFsdp, .family = Family::kTinyLlama});
  add({.shape = {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, .strategy = Strategy::kHsdp, .micro_batches = 5});
  return layouts;
}
INSTANTIATE_TEST_SUITE_P(Sequences, ModelParallel, testing::ValuesIn(SequenceLayouts()),
                         [](const auto& info) { return NameOf(info.param); });

// Proves that the comparisons above find gradients of norms, biases and positions that cover only one rank's part of
// the sequence.
TEST(SequenceParallel, WithoutTheSumOverTensorRanks_GivesOtherNumbers) {
  for (const Family family : {Family::kTinyGpt2, Family::kTinyLlama}) {
    Layout layout{.shape = {.tp = 2}, .family = family, .sequence = true};
    const std::vector<Outcome> expected = Train(OnOneRank(layout)), correct = Train(layout);

    layout.leaves_out_tensor_sums = true;
    const std::vector<Outcome> wrong = Train(layout);

    ASSERT_EQ(expected.size(), 1u);
    ASSERT_EQ(correct.size(), 2u);
    ASSERT_EQ(wrong.size(), 2u);
    for (size_t step = 0; step < kSteps; ++step) {
      const double norm = expected[0].norms[step], loss = expected[0].losses[step];
      EXPECT_NEAR(correct[0].norms[step], norm, 1e-8 * norm);
      EXPECT_GT(std::abs(wrong[0].norms[step] - norm), 1e-6 * norm);
      // The first loss is computed before the first update.
      if (step > 0) {
        EXPECT_GT(std::abs(wrong[0].losses[step] - loss), 1e-7 * loss);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ModelParallel, testing::ValuesIn(Layouts()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace trainyard
