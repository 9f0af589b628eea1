// The effect of each key of `parallel` and of `train.freeze` on communication, memory and order. Whatever the keys of
// `parallel`, losses, norms and parameters must be those of one rank with the same frozen parameters.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "models/model_description.h"
#include "tests/unit/parallel/rank_threads.h"
#include "worker/diagnostics/event_log.h"
#include "worker/diagnostics/ledger.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

constexpr int kSteps = 3;

struct Job {
  DataParallelOptions options = {};
  MeshShape mesh = {};
  std::vector<std::string> freeze = {};
  int reshard_to = 0;
  int64_t micro = 1;    // sequences of a micro-batch; a step has eight
  bool ragged = false;  // some targets are ignored
  bool backed = true;   // the model is created with memory
  int64_t tile_elements = defaults::kOptimizerTileElements;
};

struct Outcome {
  std::vector<double> losses, norms;  // of each step, over all ranks
  std::map<std::string, at::Tensor> state = {};
  CollectiveCounts shard = {}, reshard = {};  // of all steps
  std::vector<Event> events = {};             // of rank 0
  // Of rank 0: the names of the units, and the events of the last step as "KIND UNIT".
  std::vector<std::string> units = {}, last_step = {};
  std::vector<std::string> moments = {};  // names of the parameters that have moments
};

std::unique_ptr<Model> NewModel(uint64_t seed = 1, bool backed = true, at::ScalarType type = at::kDouble) {
  return *trainyard::NewModel({.layers = 3, .heads = 2, .width = 16, .context = 8, .vocabulary = 33}, seed, type,
                              backed);
}

std::pair<at::Tensor, at::Tensor> Samples(int step, int64_t first, int64_t count, bool ragged) {
  at::Tensor inputs = at::empty({count, 8}, at::kLong), targets = at::empty({count, 8}, at::kLong);
  auto token = [&](int64_t i) { return (i * i + (i % 5 == 0 ? step * 31 : 0)) % 33; };
  for (int64_t i = 0; i < count * 8; ++i) {
    const int64_t position = first * 8 + i;
    inputs.mutable_data_ptr<int64_t>()[i] = token(position);
    // The last s % 5 positions of sequence s are ignored, so micro-batches have different numbers of tokens.
    const bool is_target = !ragged || position % 8 < 8 - position / 8 % 5;
    targets.mutable_data_ptr<int64_t>()[i] = is_target ? token(position + 1) : -1;
  }
  return {inputs, targets};
}

absl::Status RunStep(const Job& run, int step, const Deal& deal, Model& model, DataParallel& strategy, double* loss_sum,
                     StepOutput* output) {
  uint64_t tokens = 0;
  const at::Tensor targets = Samples(step, 0, 8, run.ragged).second;
  for (int64_t i = 0; i < targets.numel(); ++i) tokens += targets.const_data_ptr<int64_t>()[i] >= 0;
  strategy.BeginStep(64);
  for (int64_t round = 0; round < deal.num_rounds; ++round) {
    const bool last = round + 1 == deal.num_rounds;
    if (round >= static_cast<int64_t>(deal.micro_batches.size())) {
      RETURN_IF_ERROR(strategy.RunEmptyRound(true, last));
      continue;
    }
    auto [in, out] = Samples(step, deal.micro_batches[round] * run.micro, run.micro, run.ragged);
    ASSIGN_OR_RETURN(at::Tensor loss, strategy.Forward([&, &in = in, &out = out] {
      return model.LossSum(in, out, strategy, std::nullopt);
    }));
    *loss_sum += loss.item<double>() / static_cast<double>(tokens);
    RETURN_IF_ERROR(strategy.Backward(loss, last));
  }
  RETURN_IF_ERROR(strategy.FinishBackward());
  ASSIGN_OR_RETURN(*output, strategy.Step({.lr = 1e-2, .num_tokens = tokens}));
  return absl::OkStatus();
}

Outcome Train(const Job& run) {
  Outcome outcome{.losses = std::vector<double>(kSteps), .norms = std::vector<double>(kSteps)};
  absl::Mutex mu;
  OnThreads(
      run.mesh,
      [&](const ThreadRank& rank) -> absl::Status {
        const at::ScalarType type = run.options.precision.has_value() ? run.options.precision->master : at::kDouble;
        auto model = NewModel(rank.rank == 0 ? 1 : 99, run.backed, type);
        RETURN_IF_ERROR(Freeze(run.freeze, *model));
        EventLog log([now = int64_t{0}]() mutable { return ++now; });
        ParallelOptions options{.data = run.options, .update = {.clip_norm = 0.5, .tile_elements = run.tile_elements}};
        options.data.events = &log;
        ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, rank.communicators(), options));
        const Deal deal = DealStep(8, run.micro, rank.mesh.DataRank(rank.rank), rank.mesh.num_data_ranks());
        for (int step = 1; step <= kSteps; ++step) {
          log.set_step(static_cast<uint64_t>(step));
          double loss = 0;
          StepOutput output;
          RETURN_IF_ERROR(RunStep(run, step, deal, *model, *strategy, &loss, &output));
          absl::MutexLock lock(&mu);
          outcome.losses[step - 1] += loss;
          outcome.norms[step - 1] = output.gradient_norm;
        }
        if (rank.rank == 0) {
          outcome.shard = rank.groups.shard->counts();
          outcome.reshard = rank.groups.reshard->counts();
          outcome.events = log.events();
          outcome.units = log.units();
          for (const Event& event : outcome.events) {
            if (event.step != kSteps) continue;
            outcome.last_step.push_back(absl::StrCat(EventKindName(event.kind), " ", outcome.units[event.unit]));
          }
          for (const StateEntry& entry : strategy->state().Entries()) {
            if (entry.role == kFirstMomentRole) outcome.moments.push_back(entry.name);
          }
        }
        ASSIGN_OR_RETURN(auto difference, strategy->state().CompareParameters());
        EXPECT_FALSE(difference.has_value());
        return strategy->state().Visit([&](const StateEntry& entry, const at::Tensor& values) {
          outcome.state[absl::StrCat(entry.role, " ", entry.name)] = values.detach().clone();
          return absl::OkStatus();
        });
      },
      run.reshard_to);
  return outcome;
}

void ExpectSame(const Outcome& found, const Outcome& expected) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-10 * expected.losses[step]) << "step " << step + 1;
    EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-8 * expected.norms[step]) << "step " << step + 1;
  }
  ASSERT_EQ(found.state.size(), expected.state.size());
  for (const auto& [name, tensor] : expected.state) {
    ASSERT_TRUE(found.state.contains(name)) << name;
    EXPECT_TRUE(found.state.at(name).allclose(tensor, 1e-8, 1e-12)) << name;
  }
}

const Outcome& OnOneRank(const std::vector<std::string>& freeze = {}) {
  static std::map<std::vector<std::string>, Outcome> outcomes;
  auto [it, is_new] = outcomes.try_emplace(freeze);
  if (is_new) it->second = Train({.options = {}, .mesh = {}, .freeze = freeze});
  return it->second;
}

CollectiveCount CountOf(const CollectiveCounts& counts, CollectiveKind kind) {
  auto it = counts.find({kind, at::kDouble});
  return it == counts.end() ? CollectiveCount{} : it->second;
}
CollectiveCount Gathers(const Outcome& outcome) { return CountOf(outcome.shard, CollectiveKind::kAllGather); }
int64_t Count(const Outcome& outcome, const std::string& line) {
  return std::count(outcome.last_step.begin(), outcome.last_step.end(), line);
}

TEST(PersistElements, KeepsSmallParametersWhole_WithOneGatherPerStep) {
  const Job plain{.options = {.strategy = Strategy::kZero3}, .mesh = {.dp_shard = 3}};
  Job small = plain, all = plain, two_axes = plain, every_micro_batch = plain;
  small.options.persist_elements = 100;
  all.options.persist_elements = 1000000;
  two_axes.options = {.strategy = Strategy::kHsdp, .persist_elements = 100};
  two_axes.mesh = {.dp_replicate = 2, .dp_shard = 2};
  every_micro_batch.options.persist_elements = 100;
  every_micro_batch.options.reduce_every_micro_batch = true;

  const Outcome before = Train(plain), after = Train(small), whole = Train(all);

  ExpectSame(after, OnOneRank());
  ExpectSame(whole, OnOneRank());
  ExpectSame(Train(two_axes), OnOneRank());
  ExpectSame(Train(every_micro_batch), OnOneRank());
  EXPECT_EQ(Count(after, "gather persistent"), 1);
  EXPECT_EQ(Count(after, "reduce persistent"), 1);
  EXPECT_LT(Gathers(after).elements, Gathers(before).elements);
  EXPECT_EQ(Count(whole, "gather h.0"), 0);
  EXPECT_LT(Gathers(whole).operations, Gathers(before).operations / 3);
}

TEST(ReshardAfterForward, ToN_GathersAgainAmongNRanks) {
  Job plain{.options = {.strategy = Strategy::kFsdp}, .mesh = {.dp_shard = 4}};
  Job two = plain, without_overlap = plain, across = plain;
  two.reshard_to = without_overlap.reshard_to = 2;
  without_overlap.options.overlap = false;
  across.mesh = {.dp_replicate = 2, .dp_shard = 2};
  across.options.strategy = Strategy::kHsdp;
  across.reshard_to = 2;

  const Outcome before = Train(plain), after = Train(two);

  ExpectSame(after, OnOneRank());
  ExpectSame(Train(without_overlap), OnOneRank());
  ExpectSame(Train(across), OnOneRank());
  EXPECT_EQ(Count(after, "gather h.1"), Count(before, "gather h.1"));
  // A step has two rounds, in each of which two of the three blocks are gathered again: the last one stays gathered.
  EXPECT_EQ(CountOf(after.reshard, CollectiveKind::kAllGather).operations, uint64_t{2 * 2 * kSteps});
  EXPECT_LT(Gathers(after).operations, Gathers(before).operations);
}

// Returns the largest number of all-gathers in progress at the same time.
int MaxConcurrentGathers(const Outcome& outcome) {
  int max = 0;
  for (const Event& event : outcome.events) {
    if (event.kind != EventKind::kGather) continue;
    max = std::max(
        max, static_cast<int>(std::count_if(outcome.events.begin(), outcome.events.end(), [&](const Event& other) {
          return other.kind == EventKind::kGather && other.began_ns <= event.began_ns &&
                 (other.ended_ns < 0 || other.ended_ns > event.began_ns);
        })));
  }
  return max;
}

TEST(GatherBucketElements, LimitsTheGathersInProgressAfterAStep) {
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2}) {
    Job plain{.options = {.strategy = strategy, .bucket_elements = 2000}, .mesh = {.dp_shard = 2}};
    Job one = plain, waiting = plain;
    one.options.gather_bucket_elements = 1;
    waiting.options.overlap = false;

    const Outcome all = Train(plain), limited = Train(one);

    ExpectSame(all, OnOneRank());
    ExpectSame(limited, OnOneRank());
    ExpectSame(Train(waiting), OnOneRank());
    EXPECT_GT(MaxConcurrentGathers(all), 2);
    EXPECT_EQ(MaxConcurrentGathers(limited), 1);
    EXPECT_EQ(Gathers(all).operations, Gathers(limited).operations);
  }
}

TEST(AllGather, IfFalse_EachOwnerBroadcasts) {
  Job plain{.options = {.strategy = Strategy::kZero2, .bucket_elements = 2000}, .mesh = {.dp_shard = 3}};
  Job broadcasts = plain;
  broadcasts.options.all_gather = false;

  const Outcome gathered = Train(plain), sent = Train(broadcasts);

  ExpectSame(sent, gathered);
  const uint64_t before = CountOf(gathered.shard, CollectiveKind::kBroadcast).operations;
  EXPECT_EQ(CountOf(sent.shard, CollectiveKind::kBroadcast).operations - before, 3 * Gathers(gathered).operations);
  EXPECT_EQ(Gathers(sent).operations, 0u);
}

TEST(Freeze, OfLowerUnits_SkipsTheirBackwardAndSecondGather) {
  const Outcome outcome = Train({.options = {.strategy = Strategy::kFsdp, .prefetch_elements = 0},
                                 .mesh = {.dp_shard = 2},
                                 .freeze = {"wte.*", "wpe.*", "h.0.*", "h.2.mlp.*"},
                                 .micro = 4});

  EXPECT_THAT(outcome.last_step, ElementsAre("gather root", "forward root",                           //
                                             "gather h.0", "forward h.0", "free h.0",                 //
                                             "gather h.1", "forward h.1", "free h.1",                 //
                                             "gather h.2", "forward h.2", "free h.2",                 //
                                             "gather h.2", "backward root",                           //
                                             "backward h.2", "reduce h.2", "free h.2",                //
                                             "gather h.1", "backward h.1", "reduce h.1", "free h.1",  //
                                             "reduce root", "free root", "step model"));
}

TEST(Freeze, FrozenParameters_HaveNeitherGradientsNorMoments_AndTheNumbersAreThoseOfOneRank) {
  const std::vector<std::string> freeze = {"wte.*", "wpe.*", "h.0.*", "h.2.mlp.c_fc.*"};
  std::vector<std::string> trained;
  const auto initial = NewModel();
  for (const auto& [name, tensor] : initial->parameters()) {
    const bool frozen =
        absl::StartsWith(name, "w") || absl::StartsWith(name, "h.0.") || absl::StartsWith(name, "h.2.mlp.c_fc.");
    if (!frozen) trained.push_back(name);
  }
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kHsdp}) {
    for (int64_t persist : {0, 100}) {
      Job run{.options = {.strategy = strategy, .bucket_elements = 2000, .persist_elements = persist},
              .freeze = freeze};
      run.mesh = strategy == Strategy::kDdp    ? MeshShape{.dp_replicate = 3}
                 : strategy == Strategy::kHsdp ? MeshShape{.dp_replicate = 2, .dp_shard = 2}
                                               : MeshShape{.dp_shard = 3};
      SCOPED_TRACE(absl::StrCat(StrategyName(strategy), " persist ", persist));

      const Outcome outcome = Train(run);

      ExpectSame(outcome, OnOneRank(freeze));
      EXPECT_THAT(outcome.moments, UnorderedElementsAreArray(trained));
      for (const NamedTensor& parameter : initial->parameters()) {
        const bool changed = !outcome.state.at("parameter " + parameter.name).equal(parameter.tensor);
        EXPECT_EQ(changed, std::count(trained.begin(), trained.end(), parameter.name) > 0) << parameter.name;
      }
    }
  }
}

// Only the last norm is trained: no unit takes part in backward.
TEST(Freeze, OfAllUnits_LeavesTheRoot) {
  const std::vector<std::string> freeze = {"w*", "h.*"};
  for (Strategy strategy : {Strategy::kZero1, Strategy::kFsdp}) {
    const Outcome outcome = Train({.options = {.strategy = strategy}, .mesh = {.dp_shard = 2}, .freeze = freeze});
    ExpectSame(outcome, OnOneRank(freeze));
    EXPECT_EQ(Count(outcome, "backward h.2"), 0);
  }
}

void ExpectSameBits(const Outcome& found, const Outcome& expected) {
  for (int step = 0; step < kSteps; ++step) {  // threads add up their losses in any order
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-12 * expected.losses[step]) << "step " << step + 1;
  }
  EXPECT_EQ(found.norms, expected.norms);
  ASSERT_EQ(found.state.size(), expected.state.size());
  for (const auto& [name, tensor] : expected.state) EXPECT_TRUE(found.state.at(name).equal(tensor)) << name;
}

const std::vector<std::string> kSomeFrozen = {"wte.*", "h.0.*", "h.2.mlp.c_fc.*"};

// Returns a job for each strategy, with several keys of `parallel`, but without offload.
std::vector<Job> JobsOfManyKeys() {
  std::vector<Job> jobs;
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2}) {
    jobs.push_back({.options = {.strategy = strategy,
                                .bucket_elements = 2000,
                                .gather_bucket_elements = 4000,
                                .all_gather = strategy == Strategy::kZero1},
                    .mesh = {.dp_shard = 3}});
  }
  jobs.push_back({.options = {.strategy = Strategy::kDdp, .bucket_elements = 2000}, .mesh = {.dp_replicate = 2}});
  jobs.push_back({.options = {.strategy = Strategy::kZero3, .persist_elements = 100}, .mesh = {.dp_shard = 1}});
  jobs.push_back({.options = {.strategy = Strategy::kFsdp, .persist_elements = 20}, .mesh = {.dp_shard = 4}});
  jobs.back().reshard_to = 2;
  jobs.push_back({.options = {.strategy = Strategy::kHsdp, .overlap = false, .persist_elements = 20},
                  .mesh = {.dp_replicate = 2, .dp_shard = 2}});
  jobs.back().reshard_to = 2;
  return jobs;
}

TEST(Offload, WithEveryOtherKey_ChangesNoBit) {
  for (Job run : JobsOfManyKeys()) {
    for (const std::vector<std::string>& freeze : {std::vector<std::string>(), kSomeFrozen}) {
      run.freeze = freeze;
      run.options.offload = {};
      const Outcome expected = Train(run);
      for (Offload offload : {Offload{.optimizer = true}, Offload{.parameters = true}, Offload{true, true}}) {
        SCOPED_TRACE(absl::StrCat(StrategyName(run.options.strategy), " frozen ", freeze.size(), " optimizer ",
                                  offload.optimizer, " parameters ", offload.parameters));
        run.options.offload = offload;
        run.tile_elements = 400;

        const Outcome found = Train(run);

        ExpectSameBits(found, expected);
        EXPECT_EQ(CountOf(found.reshard, CollectiveKind::kAllGather).operations,
                  CountOf(expected.reshard, CollectiveKind::kAllGather).operations);
      }
    }
  }
}

TEST(ModelWithoutMemory, WithEveryOtherKey_ChangesNoBit) {
  for (Job run : JobsOfManyKeys()) {
    run.freeze = kSomeFrozen;
    const Outcome expected = Train(run);
    run.backed = false;
    SCOPED_TRACE(StrategyName(run.options.strategy));
    ExpectSameBits(Train(run), expected);
  }
}

// In fp64 the host holds a copy and two moments of the trained parameters; frozen parameters are on the device only.
TEST(Freeze, FrozenParametersTakeNoHostMemory) {
  Ledger& ledger = Ledger::ForProcess();
  auto bytes = [&](MemoryKind kind) { return ledger.Read()[static_cast<int>(kind)].bytes; };
  const int64_t host = bytes(MemoryKind::kHost), parameters = bytes(MemoryKind::kParameters);
  OnThreads({}, [&](const ThreadRank& rank) -> absl::Status {
    auto model = NewModel();
    RETURN_IF_ERROR(Freeze({"wte.*", "wpe.*", "h.0.*", "h.1.*"}, *model));
    int64_t trained = 0;
    for (const NamedTensor& parameter : model->parameters()) {
      if (parameter.tensor.requires_grad()) trained += parameter.tensor.numel();
    }
    EXPECT_LT(3 * trained, 2 * model->num_elements());
    const DataParallelOptions options{.strategy = Strategy::kZero1, .offload = {.optimizer = true}, .ledger = &ledger};
    ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, rank.communicators(), {.data = options}));
    EXPECT_GE(bytes(MemoryKind::kHost) - host, 3 * 8 * trained);
    EXPECT_LT(bytes(MemoryKind::kHost) - host, 3 * 8 * trained * 5 / 4) << "padding adds less than a quarter";
    EXPECT_GE(bytes(MemoryKind::kParameters) - parameters, 8 * model->num_elements());
    return absl::OkStatus();
  });
}

TEST(Freeze, OfNoOrAllParameters_IsRefused) {
  EXPECT_THAT(Freeze({"h.9.*", "wte.*"}, *NewModel()).message(), HasSubstr("no parameter matches 'h.9.*'"));
  EXPECT_THAT(Freeze({"*"}, *NewModel()).message(), HasSubstr("all 40 parameters match"));
  EXPECT_TRUE(Freeze({}, *NewModel()).ok());
  EXPECT_TRUE(Freeze({"h.0.*"}, *NewModel(1, /*backed=*/false)).ok());
}

TEST(ParameterNames, AreThoseOfTheModelDescription) {
  std::vector<std::string> names;
  const auto model = NewModel();
  for (const NamedTensor& parameter : model->parameters()) names.push_back(parameter.name);
  std::vector<std::string> described;
  const ModelDescription description = DescribeModel({.layers = 3, .heads = 1, .width = 8, .context = 8});
  for (const ParameterDescription& parameter : description.parameters) described.push_back(parameter.name);
  EXPECT_THAT(described, ElementsAreArray(names));
}

// Each element is rounded by random bits of its own, wherever it is stored.
TEST(StochasticRounding, GivesTheSameBitsWithEveryStrategy) {
  const Precision bf16 =
      *ParsePrecision(PrecisionNames{.param = "bf16", .reduce = "fp32", .master = "bf16", .state = "bf16"});
  const Job replicated{.options = {.precision = bf16}, .mesh = {.dp_replicate = 2}, .micro = 4};

  const Outcome expected = Train(replicated);

  ASSERT_FALSE(expected.state.empty());
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp}) {
    Job sharded = replicated;
    sharded.options.strategy = strategy;
    sharded.mesh = {.dp_shard = 2};
    const Outcome found = Train(sharded);
    ASSERT_EQ(found.state.size(), expected.state.size());
    for (const auto& [name, tensor] : expected.state) {
      EXPECT_TRUE(found.state.at(name).equal(tensor)) << StrategyName(strategy) << ": " << name;
    }
  }
}

// The numbers depend neither on the division of a step into micro-batches nor on the number of tokens in each.
TEST(RaggedTokenCounts, ManySmallMicroBatches_GiveTheNumbersOfOneLargeOne) {
  const Outcome large = Train({.options = {}, .mesh = {}, .micro = 8, .ragged = true});
  for (int64_t micro : {1, 2, 4}) {
    ExpectSame(Train({.options = {}, .mesh = {}, .micro = micro, .ragged = true}), large);
    ExpectSame(
        Train({.options = {.strategy = Strategy::kFsdp}, .mesh = {.dp_shard = 3}, .micro = micro, .ragged = true}),
        large);
    ExpectSame(
        Train({.options = {.bucket_elements = 2000}, .mesh = {.dp_replicate = 2}, .micro = micro, .ragged = true}),
        large);
  }
  EXPECT_GT(std::abs(large.losses[0] - OnOneRank().losses[0]), 1e-6) << "ignored targets do not count";
}

}  // namespace
}  // namespace trainyard
