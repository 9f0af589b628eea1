#include "plan/list_scheduling.h"

#include <functional>
#include <queue>
#include <set>
#include <utility>

namespace trainyard {
namespace {

using Kind = PipelineAction::Kind;

// Packets on the way from one rank to a neighbour, in one direction.
struct Link {
  int reserved = 0;  // packets that are sent, or will be by an action that has begun
  int received = 0;
  std::vector<double> available;  // when each sent packet can be received
};

class ListScheduler {
 public:
  ListScheduler(const PipelineShape& shape, const PipelineCosts& costs, const ListPolicy& policy)
      : shape_(shape),
        costs_(costs),
        policy_(policy),
        ranks_(shape.stages),
        activations_(shape.stages),
        gradients_(shape.stages) {}

  PipelineSchedule Run() {
    PipelineSchedule schedule{.shape = shape_, .ranks = {}};
    schedule.ranks.resize(shape_.stages);
    for (int rank = 0; rank < shape_.stages; ++rank) chances_.push({0, rank});
    while (!chances_.empty()) {
      now_ = chances_.top().first;
      std::set<int> ranks;
      for (; !chances_.empty() && chances_.top().first <= now_; chances_.pop()) ranks.insert(chances_.top().second);
      while (!ranks.empty()) {
        const int rank = *ranks.begin();
        ranks.erase(ranks.begin());
        while (ranks_[rank].free_at <= now_ && BeginOne(rank, &schedule.ranks[rank])) {
          // The action may have freed a slot of a link, so that a neighbour can begin an action at the same time.
          if (rank > 0) ranks.insert(rank - 1);
          if (!is_last(rank)) ranks.insert(rank + 1);
        }
      }
    }
    return schedule;
  }

 private:
  struct Rank {
    double free_at = 0;
    // The number of actions of each kind that have begun, which is also the micro-batch of the next one.
    int forwards = 0, backwards = 0, weights = 0;
  };

  bool is_last(int rank) const { return rank == shape_.stages - 1; }
  bool HasRoom(const Link& link) const { return link.reserved - link.received < costs_.slots_per_link; }
  bool HasPacket(const Link& link) const {
    return static_cast<size_t>(link.received) < link.available.size() && link.available[link.received] <= now_;
  }

  bool CanForward(int rank) const {
    const Rank& state = ranks_[rank];
    if (state.forwards == shape_.micro_batches) return false;
    const int finished = policy_.split_backward ? state.weights : state.backwards;
    if (state.forwards - finished >= policy_.in_flight[rank]) return false;
    return (rank == 0 || HasPacket(activations_[rank - 1])) && (is_last(rank) || HasRoom(activations_[rank]));
  }

  bool CanBackward(int rank) const {
    if (ranks_[rank].backwards == ranks_[rank].forwards) return false;
    return (is_last(rank) || HasPacket(gradients_[rank + 1])) && (rank == 0 || HasRoom(gradients_[rank]));
  }

  bool BeginOne(int rank, std::vector<PipelineAction>* list) {
    const Kind backward = policy_.split_backward ? Kind::kBackwardInput : Kind::kBackward;
    const bool can_backward = CanBackward(rank);
    if (can_backward && (policy_.backward_first || !CanForward(rank))) {
      Begin(rank, backward, ranks_[rank].backwards++, list);
    } else if (CanForward(rank)) {
      Begin(rank, Kind::kForward, ranks_[rank].forwards++, list);
    } else if (policy_.split_backward && ranks_[rank].weights < ranks_[rank].backwards) {
      Begin(rank, Kind::kBackwardWeight, ranks_[rank].weights++, list);
    } else {
      return false;
    }
    return true;
  }

  void Begin(int rank, Kind kind, int micro_batch, std::vector<PipelineAction>* list) {
    list->push_back({.kind = kind, .chunk = 0, .micro_batch = micro_batch});
    const double end = now_ + CostOf(costs_, kind, rank);
    ranks_[rank].free_at = end;
    chances_.push({end, rank});
    if (kind == Kind::kBackwardWeight) return;
    const bool forward = kind == Kind::kForward;
    if (forward ? rank > 0 : !is_last(rank)) ++(forward ? activations_[rank - 1] : gradients_[rank + 1]).received;
    if (forward ? is_last(rank) : rank == 0) return;
    Link& link = forward ? activations_[rank] : gradients_[rank];
    ++link.reserved;
    link.available.push_back(end + costs_.link);
    chances_.push({end + costs_.link, forward ? rank + 1 : rank - 1});
  }

  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  const ListPolicy& policy_;
  double now_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Link> activations_, gradients_;  // by sending rank
  using Chance = std::pair<double, int>;       // a time at which an action of a rank may become possible
  std::priority_queue<Chance, std::vector<Chance>, std::greater<>> chances_;
};

}  // namespace

PipelineSchedule ListSchedule(const PipelineShape& shape, const PipelineCosts& costs, const ListPolicy& policy) {
  return ListScheduler(shape, costs, policy).Run();
}

}  // namespace trainyard
