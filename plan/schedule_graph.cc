#include "plan/schedule_graph.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using Kind = PipelineAction::Kind;

// The actions that send on one link, and those that receive, each in the order of their rank's list of actions.
struct LinkUse {
  std::vector<int> senders;
  std::vector<int> receivers;
};

class GraphBuilder {
 public:
  GraphBuilder(const PipelineSchedule& schedule, int slots, std::vector<std::string>* problems)
      : schedule_(schedule), shape_(schedule.shape), slots_(slots), problems_(problems) {}

  ScheduleGraph Build() {
    NumberActions();
    ConnectInputs();
    CollectLinks();
    for (int rank = 0; rank < shape_.stages; ++rank) {
      UseLink(rank, Next(rank), "activations", activations_[rank]);
      UseLink(rank, Previous(rank), "gradients", gradients_[rank]);
    }
    return std::move(graph_);
  }

 private:
  int Next(int rank) const { return (rank + 1) % shape_.stages; }
  int Previous(int rank) const { return (rank + shape_.stages - 1) % shape_.stages; }
  size_t Index(int model_chunk, int micro_batch) const {
    return static_cast<size_t>(model_chunk) * shape_.micro_batches + micro_batch;
  }

  void NumberActions() {
    const size_t cells = static_cast<size_t>(shape_.model_chunks()) * shape_.micro_batches;
    forward_.assign(cells, -1);
    backward_.assign(cells, -1);
    int number = 0;
    for (int rank = 0; rank < shape_.stages; ++rank) {
      graph_.first.push_back(number);
      for (const PipelineAction& action : schedule_.ranks[rank]) {
        const size_t cell = Index(shape_.ModelChunk(rank, action.chunk), action.micro_batch);
        if (action.kind == Kind::kForward) forward_[cell] = number;
        if (action.kind == Kind::kBackward || action.kind == Kind::kBackwardInput) backward_[cell] = number;
        graph_.rank.push_back(rank);
        ++number;
      }
    }
    graph_.first.push_back(number);
    graph_.input.assign(number, -1);
    graph_.receives.assign(number, false);
    graph_.frees_slot.assign(number, -1);
  }

  // Each output has one receiver at most, so the input of an action identifies the packet that the action receives.
  void ConnectInputs() {
    const int last = shape_.model_chunks() - 1;
    for (int chunk = 0; chunk <= last; ++chunk) {
      for (int m = 0; m < shape_.micro_batches; ++m) {
        if (chunk > 0) graph_.input[forward_[Index(chunk, m)]] = forward_[Index(chunk - 1, m)];
        if (chunk < last) graph_.input[backward_[Index(chunk, m)]] = backward_[Index(chunk + 1, m)];
      }
    }
  }

  void CollectLinks() {
    activations_.resize(shape_.stages);
    gradients_.resize(shape_.stages);
    if (shape_.stages == 1) return;  // neighbouring model chunks of one rank need no link
    const int last = shape_.model_chunks() - 1;
    for (int rank = 0; rank < shape_.stages; ++rank) {
      for (size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const PipelineAction& action = schedule_.ranks[rank][i];
        const int number = graph_.first[rank] + static_cast<int>(i);
        const int model_chunk = shape_.ModelChunk(rank, action.chunk);
        if (action.kind == Kind::kForward) {
          if (model_chunk < last) activations_[rank].senders.push_back(number);
          if (model_chunk > 0) activations_[Previous(rank)].receivers.push_back(number);
        } else if (action.kind != Kind::kBackwardWeight) {
          if (model_chunk > 0) gradients_[rank].senders.push_back(number);
          if (model_chunk < last) gradients_[Next(rank)].receivers.push_back(number);
        }
        graph_.receives[number] = graph_.input[number] >= 0;
      }
    }
  }

  void UseLink(int from, int to, absl::string_view what, const LinkUse& use) {
    for (size_t i = 0; i < use.senders.size(); ++i) {
      if (graph_.input[use.receivers[i]] != use.senders[i]) {
        problems_->push_back(absl::StrCat(
            "rank ", to, " receives out of order: the next packet of ", what, " from rank ", from, " is that of ",
            Text(use.senders[i]), ", but ", Text(use.receivers[i]), " of rank ", to, " needs that of ",
            Text(graph_.input[use.receivers[i]]), " first; a link delivers packets in the order of the sends"));
        return;
      }
      if (i >= static_cast<size_t>(slots_)) graph_.frees_slot[use.senders[i]] = use.receivers[i - slots_];
    }
  }

  std::string Text(int number) const {
    const int rank = graph_.rank[number];
    return ActionText(schedule_.ranks[rank][number - graph_.first[rank]], shape_.chunks_per_rank);
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  const int slots_;
  std::vector<std::string>* problems_;
  ScheduleGraph graph_;
  std::vector<int> forward_, backward_;           // action of each model chunk and micro-batch
  std::vector<LinkUse> activations_, gradients_;  // by sending rank
};

// Executes each rank as far as it can, then the ranks that waited for it. Progress of one rank never stops another, so
// the order in which ranks are tried changes neither the times nor the verdict.
class Runner {
 public:
  Runner(const PipelineSchedule& schedule, const ScheduleGraph& graph, const PipelineCosts& costs)
      : schedule_(schedule), graph_(graph), costs_(costs), computed_(graph.rank.size()), done_(graph.rank.size()) {}

  ScheduleRun Run() {
    const size_t ranks = schedule_.ranks.size();
    run_.start.resize(graph_.rank.size());
    run_.end.resize(graph_.rank.size());
    run_.sent.resize(graph_.rank.size());
    run_.position.assign(ranks, 0);
    waiters_.resize(ranks);
    free_at_.assign(ranks, 0);
    std::deque<int> ready;
    for (size_t rank = 0; rank < ranks; ++rank) ready.push_back(static_cast<int>(rank));
    while (!ready.empty()) {
      const int rank = ready.front();
      ready.pop_front();
      if (!Advance(rank)) continue;
      ready.insert(ready.end(), waiters_[rank].begin(), waiters_[rank].end());
      waiters_[rank].clear();
    }
    run_.finished = true;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (run_.position[rank] < static_cast<int>(schedule_.ranks[rank].size())) run_.finished = false;
    }
    return std::move(run_);
  }

 private:
  // Returns whether the rank made progress. If the rank then waits for another one, adds it to that rank's waiters.
  bool Advance(int rank) {
    bool progress = false;
    const int size = static_cast<int>(schedule_.ranks[rank].size());
    for (int& i = run_.position[rank]; i < size; ++i) {
      const int number = graph_.first[rank] + i;
      if (!computed_[number]) {
        const int input = graph_.input[number];
        if (input >= 0 && !done_[input]) return WaitFor(input, rank, progress);
        Compute(rank, number, input);
        progress = true;
      }
      const int frees = graph_.frees_slot[number];
      if (frees >= 0 && !computed_[frees]) return WaitFor(frees, rank, progress);
      run_.sent[number] = frees >= 0 ? std::max(run_.end[number], run_.start[frees]) : run_.end[number];
      free_at_[rank] = run_.sent[number];
      done_[number] = true;
      progress = true;
    }
    return progress;
  }

  void Compute(int rank, int number, int input) {
    const PipelineAction& action = schedule_.ranks[rank][number - graph_.first[rank]];
    double start = free_at_[rank];
    if (input >= 0) start = std::max(start, run_.sent[input] + (graph_.receives[number] ? costs_.link : 0));
    run_.start[number] = start;
    run_.end[number] = start + CostOf(costs_, action.kind, schedule_.shape.ModelChunk(rank, action.chunk));
    computed_[number] = true;
  }

  bool WaitFor(int number, int rank, bool progress) {
    waiters_[graph_.rank[number]].push_back(rank);
    return progress;
  }

  const PipelineSchedule& schedule_;
  const ScheduleGraph& graph_;
  const PipelineCosts& costs_;
  ScheduleRun run_;
  std::vector<bool> computed_, done_;  // done: also sent
  std::vector<std::vector<int>> waiters_;
  std::vector<double> free_at_;
};

}  // namespace

ScheduleGraph BuildScheduleGraph(const PipelineSchedule& schedule, int slots, std::vector<std::string>* problems) {
  return GraphBuilder(schedule, slots, problems).Build();
}

ScheduleRun RunSchedule(const PipelineSchedule& schedule, const ScheduleGraph& graph, const PipelineCosts& costs) {
  return Runner(schedule, graph, costs).Run();
}

}  // namespace trainyard
