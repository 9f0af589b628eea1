// The event log of a strategy, especially for a small example (three layers of three parameters on three ranks), and
// the comparison of the parameters of all ranks.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/parallel/rank_threads.h"
#include "worker/diagnostics/event_log.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// A clock that advances by one with every reading, so that times show the order.
std::function<int64_t()> CountingClock() {
  return [now = int64_t{0}]() mutable { return ++now; };
}

// La (a0, a1, a2) -> Lb -> Lc; every parameter is in a layer.
class ThreeLayers final : public Model {
 public:
  ThreeLayers() {
    units_.push_back({.name = "root"});
    for (const char* layer : {"a", "b", "c"}) {
      units_.push_back({.name = absl::StrCat("L", layer),
                        .first_parameter = static_cast<int>(parameters_.size()),
                        .num_parameters = 3});
      for (int i = 0; i < 3; ++i) {
        parameters_.push_back({absl::StrCat(layer, i), at::full({16}, 0.5 + i, at::kDouble).requires_grad_(true)});
      }
    }
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor&, UnitHooks& hooks, std::optional<DropoutKey>,
                     const at::Tensor& = {}) override {
    hooks.BeforeRoot();
    at::Tensor x = inputs;
    for (int unit = 1; unit <= 3; ++unit) {
      x = hooks.RunUnit(unit, x, [this, unit](const at::Tensor& in, ProductTape*) {
        auto parameter = [&](int i) { return parameters_[(unit - 1) * 3 + i].tensor; };
        return in * parameter(0) + parameter(1) * parameter(2);
      });
    }
    return hooks.AfterRoot(x.sum());
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks&) override { return inputs; }
  int64_t context() const override { return 16; }
  int64_t vocabulary() const override { return 1; }
};

absl::Status RunThreeLayers(ThreeLayers& model, DataParallel& strategy, int rank) {
  at::Tensor x = at::full({16}, 1.0 + rank, at::kDouble);
  strategy.BeginStep(48);
  ASSIGN_OR_RETURN(at::Tensor loss, strategy.Forward([&] { return model.LossSum(x, x, strategy, {}); }));
  RETURN_IF_ERROR(strategy.Backward(loss, /*last=*/true));
  RETURN_IF_ERROR(strategy.FinishBackward());
  return strategy.Step({.lr = 1e-3, .num_tokens = 48}).status();
}

// Returns rank 0's log of one step.
std::vector<std::string> LinesOfAStep(const DataParallelOptions& options) {
  std::vector<std::string> lines;
  OnThreads({.dp_shard = 3}, [&](const ThreadRank& rank) -> absl::Status {
    ThreeLayers model;
    EventLog log(CountingClock());
    ParallelOptions own{.data = options};
    own.data.events = &log;
    ASSIGN_OR_RETURN(auto strategy, Parallelize(model, rank.mesh, rank.communicators(), own));
    RETURN_IF_ERROR(RunThreeLayers(model, *strategy, rank.rank));
    if (rank.rank == 0) lines = log.Lines();
    return absl::OkStatus();
  });
  return lines;
}

TEST(ThreeLayersExample, PartitionsThreeLayersOverThreeRanks) {
  std::vector<std::string> parameters(3);
  OnThreads({.dp_shard = 3}, [&](const ThreadRank& rank) -> absl::Status {
    ThreeLayers model;
    ASSIGN_OR_RETURN(auto strategy,
                     Parallelize(model, rank.mesh, rank.communicators(), {.data = {.strategy = Strategy::kZero3}}));
    // A rank requests the ranges that it holds.
    return strategy->state().Load([&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor&) {
      if (entry.role == kParameterRole)
        absl::StrAppend(&parameters[rank.rank], parameters[rank.rank].empty() ? "" : " ", entry.name);
      EXPECT_EQ(first, 0);
      EXPECT_EQ(count, 16) << "a whole parameter";
      return absl::OkStatus();
    });
  });

  EXPECT_THAT(parameters, ElementsAre("a0 b0 c0", "a1 b1 c1", "a2 b2 c2"));
}

TEST(ThreeLayersExample, GathersComputesAndFreesLayerByLayer_ForwardAndBackward) {
  const std::vector<std::string> lines = LinesOfAStep({.strategy = Strategy::kZero3, .prefetch_elements = 0});

  EXPECT_THAT(lines, ElementsAre("gather La", "forward La", "free La",                //
                                 "gather Lb", "forward Lb", "free Lb",                //
                                 "gather Lc", "forward Lc", "free Lc",                //
                                 "gather Lc", "backward Lc", "reduce Lc", "free Lc",  //
                                 "gather Lb", "backward Lb", "reduce Lb", "free Lb",  //
                                 "gather La", "backward La", "reduce La", "free La", "step model"));
}

TEST(ThreeLayersExample, PrefetchesTheNextLayer_AndHoldsAtMostTwo) {
  const std::vector<std::string> lines = LinesOfAStep({.strategy = Strategy::kZero3});

  EXPECT_THAT(lines, ElementsAre("gather La", "gather Lb", "forward La", "free La",   //
                                 "gather Lc", "forward Lb", "free Lb", "forward Lc",  //
                                 "gather Lb", "backward Lc", "reduce Lc", "free Lc",  //
                                 "gather La", "backward Lb", "reduce Lb", "free Lb",  //
                                 "backward La", "reduce La", "free La", "step model"));
  int live = 0, max_live = 0;
  for (const std::string& line : lines) {
    live += absl::StartsWith(line, "gather") - absl::StartsWith(line, "free");
    max_live = std::max(max_live, live);
  }
  EXPECT_EQ(max_live, 2);
  EXPECT_EQ(live, 0);
}

std::unique_ptr<Model> NewSmallGpt() {
  return *trainyard::NewModel({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 32}, 1, at::kFloat);
}

// Returns the events of rank 0 for steps of one micro-batch of a small GPT on two ranks.
std::vector<Event> EventsOfGpt(const DataParallelOptions& options, const MeshShape& mesh,
                               std::vector<std::string>* units) {
  std::vector<Event> events;
  OnThreads(mesh, [&](const ThreadRank& rank) -> absl::Status {
    auto model = NewSmallGpt();
    EventLog log(CountingClock());
    ParallelOptions own{.data = options};
    own.data.events = &log;
    ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, rank.communicators(), own));
    at::Tensor tokens = at::arange(9, at::kLong).view({1, 9});
    for (int step = 0; step < 2; ++step) {
      log.set_step(static_cast<uint64_t>(step) + 1);
      strategy->BeginStep(16);
      ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&] {
        return model->LossSum(tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8), *strategy, std::nullopt);
      }));
      RETURN_IF_ERROR(strategy->Backward(loss, /*last=*/true));
      RETURN_IF_ERROR(strategy->FinishBackward());
      RETURN_IF_ERROR(strategy->Step({.lr = 1e-3, .num_tokens = 16}).status());
    }
    if (rank.rank == 0) {
      events = log.events();
      *units = log.units();
    }
    return absl::OkStatus();
  });
  for (const Event& event : events) EXPECT_GE(event.ended_ns, event.began_ns) << "an event did not end";
  return events;
}

TEST(Events, ShowThatTheFirstBucketIsReducedDuringBackward) {
  for (bool overlap : {true, false}) {
    std::vector<std::string> units;
    const std::vector<Event> events =
        EventsOfGpt({.bucket_elements = 2000, .overlap = overlap}, {.dp_replicate = 2}, &units);
    auto in_step_two = [&](EventKind kind) {
      auto it = std::find_if(events.begin(), events.end(),
                             [&](const Event& event) { return event.kind == kind && event.step == 2; });
      return it == events.end() ? Event{} : *it;
    };
    const Event backward = in_step_two(EventKind::kBackward), reduce = in_step_two(EventKind::kReduce);
    ASSERT_GT(reduce.began_ns, 0);
    EXPECT_EQ(reduce.began_ns < backward.ended_ns, overlap);
    EXPECT_GT(reduce.began_ns, backward.began_ns);
  }
}

TEST(Events, OnTwoAxes_HaveOneReductionPerUnit) {
  std::vector<std::string> units;
  const std::vector<Event> events =
      EventsOfGpt({.strategy = Strategy::kHsdp}, {.dp_replicate = 2, .dp_shard = 2}, &units);

  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Event& event) { return event.kind == EventKind::kReduce && event.step == 2; }),
            3);
  EXPECT_THAT(units, ElementsAre("root", "h.0", "h.1", "model"));
}

// Rank `changed_rank` changes one element of `name`. Returns what each rank reports.
std::vector<std::string> Differences(const DataParallelOptions& options, const MeshShape& shape, int changed_rank,
                                     const std::string& name) {
  std::vector<std::string> found(shape.dp_replicate * shape.dp_shard);
  OnThreads(shape, [&](const ThreadRank& rank) -> absl::Status {
    auto model = NewSmallGpt();
    ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, rank.communicators(), {.data = options}));
    ASSIGN_OR_RETURN(auto before, strategy->state().CompareParameters());
    EXPECT_FALSE(before.has_value());
    auto original = NewSmallGpt();
    auto source = [&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
      for (const NamedTensor& parameter : original->parameters()) {
        if (parameter.name != entry.name) continue;
        entry.role == kParameterRole ? out.copy_(parameter.tensor.view(-1).narrow(0, first, count)) : out.zero_();
      }
      if (entry.role == kParameterRole && entry.name == name && first == 0) out.narrow(0, 3, 1).add_(0.5);
      return absl::OkStatus();
    };
    if (rank.rank == changed_rank) {
      RETURN_IF_ERROR(strategy->state().Load(source));
    }
    ASSIGN_OR_RETURN(auto difference, strategy->state().CompareParameters());
    if (difference.has_value()) {
      found[rank.rank] = absl::StrCat(difference->name, " of ", absl::StrJoin(difference->ranks, " "));
    }
    return absl::OkStatus();
  });
  return found;
}

TEST(CompareParameters, NamesTheTensorAndTheRanks) {
  const std::string name = "h.1.mlp.c_fc.weight";
  auto on_all_ranks = [&](size_t ranks, const std::string& text) { return std::vector<std::string>(ranks, text); };

  EXPECT_THAT(Differences({}, {.dp_replicate = 3}, 1, name), ElementsAreArray(on_all_ranks(3, name + " of 1")));
  EXPECT_THAT(Differences({.strategy = Strategy::kZero1}, {.dp_shard = 3}, 2, name),
              ElementsAreArray(on_all_ranks(3, name + " of 2")));
  // The ranks of a replica combine their hashes, so both ranks of the changed replica are named.
  EXPECT_THAT(Differences({.strategy = Strategy::kHsdp}, {.dp_replicate = 2, .dp_shard = 2}, 2, name),
              ElementsAreArray(on_all_ranks(4, name + " of 2 3")));
  // The masters are sharded; the replicated weights differ.
  EXPECT_THAT(
      Differences({.strategy = Strategy::kZero2, .precision = *ParsePrecision("bf16")}, {.dp_shard = 3}, 2, name),
      ElementsAreArray(on_all_ranks(3, name + " of 2")));
}

}  // namespace
}  // namespace trainyard
