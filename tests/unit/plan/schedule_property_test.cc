// Compares CheckSchedule with an executor written for this test: CheckSchedule must accept a randomly changed schedule
// if and only if its execution with bounded queues reaches the end and keeps every rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "plan/pipeline_schedule.h"
#include "plan/schedule_check.h"
#include "plan/schedule_simulation.h"

namespace trainyard {
namespace {

using Action = PipelineAction;

// A packet names what it carries: the model chunk that consumes it, and the micro-batch.
struct Packet {
  int model_chunk;
  int micro_batch;
  bool operator==(const Packet&) const = default;
};

// Executes the lists of actions of all ranks, with one queue of `slots` packets per (sender, receiver, direction), in
// steps of ranks in random order. Unlike CheckSchedule, it uses no graph.
class FakeExecutor {
 public:
  FakeExecutor(const PipelineSchedule& schedule, size_t slots, std::mt19937* random)
      : schedule_(schedule), shape_(schedule.shape), slots_(slots), random_(*random), ranks_(schedule.ranks.size()) {}

  // Whether all ranks reach the end of their lists having done everything once.
  bool Finishes() {
    if (ranks_.size() != static_cast<size_t>(shape_.stages)) return false;
    for (;;) {
      std::vector<int> order;
      for (int rank = 0; rank < shape_.stages; ++rank) order.push_back(rank);
      std::shuffle(order.begin(), order.end(), random_);
      bool progress = false;
      for (const int rank : order) progress = Step(rank) || progress;
      if (broken_) return false;
      if (!progress) break;
    }
    for (int rank = 0; rank < shape_.stages; ++rank) {
      if (ranks_[rank].position < schedule_.ranks[rank].size()) return false;
    }
    // Every forward, and every backward as a whole or in two halves.
    const size_t cells = static_cast<size_t>(shape_.model_chunks()) * shape_.micro_batches;
    return forwards_.size() == cells && input_gradients_.size() == cells && weight_gradients_.size() == cells;
  }

 private:
  using Cell = std::pair<int, int>;  // model chunk, micro-batch
  struct Rank {
    size_t position = 0;
    bool computed = false;  // the action at `position`, whose packet waits for a free slot
  };

  bool Step(int rank) {
    Rank& state = ranks_[rank];
    if (state.position == schedule_.ranks[rank].size()) return false;
    const Action& action = schedule_.ranks[rank][state.position];
    if (action.chunk < 0 || action.chunk >= shape_.chunks_per_rank || action.micro_batch < 0 ||
        action.micro_batch >= shape_.micro_batches) {
      broken_ = true;
      return false;
    }
    const Cell cell(shape_.ModelChunk(rank, action.chunk), action.micro_batch);
    if (!state.computed) {
      if (!Receive(rank, action, cell)) return false;
      Compute(action, cell);
      state.computed = true;
      return true;
    }
    if (!Send(rank, action, cell)) return false;
    state.computed = false;
    ++state.position;
    return true;
  }

  bool IsBackwardPass(const Action& action) const {
    return action.kind == Action::kBackward || action.kind == Action::kBackwardInput;
  }

  bool Receive(int rank, const Action& action, const Cell& cell) {
    const bool forward = action.kind == Action::kForward;
    if (!forward && !IsBackwardPass(action)) return true;
    if (cell.first == (forward ? 0 : shape_.model_chunks() - 1)) return true;
    if (shape_.stages == 1) {  // the neighbouring chunk is on this rank
      const Cell source(cell.first + (forward ? -1 : 1), cell.second);
      return (forward ? forwards_ : input_gradients_).contains(source);
    }
    const int from = (rank + (forward ? shape_.stages - 1 : 1)) % shape_.stages;
    std::deque<Packet>& queue = queues_[{from, rank, forward}];
    if (queue.empty()) return false;
    if (queue.front() != Packet{cell.first, cell.second}) {
      broken_ = true;
      return false;
    }
    queue.pop_front();
    return true;
  }

  void Compute(const Action& action, const Cell& cell) {
    if (action.kind == Action::kForward && !forwards_.insert(cell).second) broken_ = true;
    if (IsBackwardPass(action)) {
      if (!forwards_.contains(cell) || !input_gradients_.insert(cell).second) broken_ = true;
    }
    if (action.kind == Action::kBackward || action.kind == Action::kBackwardWeight) {
      if (!input_gradients_.contains(cell) || !weight_gradients_.insert(cell).second) broken_ = true;
    }
  }

  bool Send(int rank, const Action& action, const Cell& cell) {
    const bool forward = action.kind == Action::kForward;
    if (!forward && !IsBackwardPass(action)) return true;
    if (shape_.stages == 1 || cell.first == (forward ? shape_.model_chunks() - 1 : 0)) return true;
    const int to = (rank + (forward ? 1 : shape_.stages - 1)) % shape_.stages;
    std::deque<Packet>& queue = queues_[{rank, to, forward}];
    if (queue.size() == slots_) return false;
    queue.push_back({cell.first + (forward ? 1 : -1), cell.second});
    return true;
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  const size_t slots_;
  std::mt19937& random_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, bool>, std::deque<Packet>> queues_;
  std::set<Cell> forwards_, input_gradients_, weight_gradients_;
  bool broken_ = false;
};

int Below(int limit, std::mt19937* random) { return std::uniform_int_distribution<int>(0, limit - 1)(*random); }

// Removes, repeats, changes, splits or moves one action. Moves within a list are the most frequent, because only they
// and splits can leave a schedule valid.
void Mutate(PipelineSchedule* schedule, std::mt19937* random) {
  std::vector<Action>& list = schedule->ranks[Below(schedule->shape.stages, random)];
  if (list.empty()) return;
  const int from = Below(static_cast<int>(list.size()), random), to = Below(static_cast<int>(list.size()), random);
  Action action = list[from];
  switch (Below(12, random)) {
    case 0:
      list.erase(list.begin() + from);
      return;
    case 1:
      list.insert(list.begin() + to, action);
      return;
    case 2:
      list[from].micro_batch += Below(2, random) == 0 ? 1 : -1;
      return;
    case 3:
      list[from].chunk += Below(2, random) == 0 ? 1 : -1;
      return;
    case 4:
      list[from].kind = static_cast<Action::Kind>(Below(4, random));
      return;
    case 5:  // splits a backward
      if (action.kind != Action::kBackward) return;
      list[from].kind = Action::kBackwardInput;
      action.kind = Action::kBackwardWeight;
      list.insert(list.begin() + std::max(from + 1, to), action);
      return;
    case 6:
    case 7:
    case 8:
      list.erase(list.begin() + from);
      list.insert(list.begin() + to, action);
      return;
    default:
      if (from + 1 < static_cast<int>(list.size())) std::swap(list[from], list[from + 1]);
  }
}

// Exchanges two micro-batches in all lists. A valid schedule stays valid, although the order of its micro-batches has
// changed.
void SwapMicroBatchesEverywhere(PipelineSchedule* schedule, std::mt19937* random) {
  const int a = Below(schedule->shape.micro_batches, random), b = Below(schedule->shape.micro_batches, random);
  for (std::vector<Action>& list : schedule->ranks) {
    for (Action& action : list) {
      if (action.micro_batch == a) {
        action.micro_batch = b;
      } else if (action.micro_batch == b) {
        action.micro_batch = a;
      }
    }
  }
}

PipelineSchedule RandomSchedule(std::mt19937* random) {
  for (;;) {
    const ScheduleKind kind = AllScheduleKinds()[Below(5, random)];
    const int chunks = kind == ScheduleKind::kInterleaved ? 2 + Below(2, random) : 1;
    const PipelineShape shape{
        .stages = 1 + Below(4, random), .chunks_per_rank = chunks, .micro_batches = 1 + Below(8, random)};
    auto schedule = MakeSchedule(kind, shape);
    if (schedule.ok()) return *std::move(schedule);
  }
}

TEST(CheckScheduleProperty, AcceptsExactlyTheSchedulesThatAnExecutionFinishes) {
  std::mt19937 random(16);
  int accepted = 0, refused = 0, deadlocks = 0;
  for (int i = 0; i < 20'000; ++i) {
    PipelineSchedule schedule = RandomSchedule(&random);
    if (Below(4, &random) == 0) SwapMicroBatchesEverywhere(&schedule, &random);
    for (int mutations = Below(4, &random); mutations > 0; --mutations) Mutate(&schedule, &random);
    const int slots = 1 + Below(3, &random);

    const absl::Status checked = CheckSchedule(schedule, slots);
    const bool finishes = FakeExecutor(schedule, slots, &random).Finishes();

    ASSERT_EQ(checked.ok(), finishes) << slots << " slots\n" << ScheduleLists(schedule) << checked;
    EXPECT_EQ(Simulate(schedule, {.slots_per_link = slots}).ok(), finishes);
    ++(finishes ? accepted : refused);
    if (checked.message().find("deadlock") != absl::string_view::npos) ++deadlocks;
  }
  // The comparison means something only if all verdicts occur.
  EXPECT_GT(accepted, 2'000);
  EXPECT_GT(refused, 2'000);
  EXPECT_GT(deadlocks, 100);
}

TEST(ListSchedulesProperty, FinishWithinTheirMemoryForAnyCosts) {
  std::mt19937 random(91);
  // Durations of very different sizes, among them 0.
  const auto durations = [&](int count, bool may_be_zero) {
    std::vector<double> result;
    for (int i = 0; i < count; ++i) {
      result.push_back(may_be_zero && Below(5, &random) == 0 ? 0 : std::pow(2.0, Below(16, &random) - 8));
    }
    return result;
  };
  for (int i = 0; i < 3'000; ++i) {
    const PipelineShape shape{.stages = 2 + Below(5, &random), .micro_batches = 1 + Below(20, &random)};
    const int count = Below(2, &random) == 0 ? 1 : shape.stages;
    const SimulatedOptions options{.costs = {.forward = durations(count, false),
                                             .backward = durations(count, true),
                                             .backward_input = durations(count, true),
                                             .backward_weight = durations(count, true),
                                             .link = durations(1, true)[0],
                                             .slots_per_link = 1 + Below(3, &random)},
                                   .in_flight = 1 + Below(12, &random)};
    const ScheduleKind kind = Below(2, &random) == 0 ? ScheduleKind::kZeroBubble : ScheduleKind::kSimulated;

    auto schedule = MakeSchedule(kind, shape, options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    auto simulation = Simulate(*schedule, options.costs);

    ASSERT_TRUE(simulation.ok()) << ScheduleName(kind) << " " << simulation.status();
    for (const int peak : simulation->peak_in_flight) ASSERT_LE(peak, options.in_flight);
    ASSERT_TRUE(FakeExecutor(*schedule, options.costs.slots_per_link, &random).Finishes());
    auto theirs = Simulate(*MakeSchedule(ScheduleKind::kOneForwardOneBackward, shape), options.costs);
    if (kind == ScheduleKind::kSimulated && theirs.ok() && theirs->peak_in_flight[0] <= options.in_flight) {
      ASSERT_LE(simulation->total, theirs->total);
    }
  }
}

}  // namespace
}  // namespace trainyard
