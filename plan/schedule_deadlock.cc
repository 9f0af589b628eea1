// The description of a deadlock.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/schedule_graph.h"

namespace trainyard {
namespace {

// What a rank that has not finished waits for: the start of an action (for a free slot) or its end (for its output).
struct Wait {
  int action = -1;  // the number of the action that waits
  int other = -1;   // the number of the action that it waits for
  bool for_room = false;
};

// The run has stopped, so the output of an action is missing exactly if the rank of that action has not passed it.
Wait WaitOf(const ScheduleGraph& graph, const ScheduleRun& run, int rank) {
  const int number = graph.first[rank] + run.position[rank];
  const int input = graph.input[number];
  if (input >= 0 && input - graph.first[graph.rank[input]] >= run.position[graph.rank[input]]) {
    return {.action = number, .other = input, .for_room = false};
  }
  return {.action = number, .other = graph.frees_slot[number], .for_room = true};
}

}  // namespace

std::string DescribeDeadlock(const PipelineSchedule& schedule, const ScheduleGraph& graph, const ScheduleRun& run) {
  const auto text = [&](int number) {
    const int rank = graph.rank[number];
    return ActionText(schedule.ranks[rank][number - graph.first[rank]], schedule.shape.chunks_per_rank);
  };
  int rank = 0;
  while (run.position[rank] == static_cast<int>(schedule.ranks[rank].size())) ++rank;
  // Each waiting rank waits for another waiting rank, so following them leads back to a rank that was visited before.
  std::vector<int> visited;
  auto repeated = visited.end();
  for (; (repeated = std::find(visited.begin(), visited.end(), rank)) == visited.end();) {
    visited.push_back(rank);
    rank = graph.rank[WaitOf(graph, run, rank).other];
  }
  std::vector<std::string> clauses;
  for (auto member = repeated; member != visited.end(); ++member) {
    const Wait wait = WaitOf(graph, run, *member);
    const int other = graph.rank[wait.other];
    clauses.push_back(wait.for_room ? absl::StrCat("rank ", *member, " waits in ", text(wait.action),
                                                   " for a free slot to send to rank ", other, ", which must begin ",
                                                   text(wait.other), " first")
                                    : absl::StrCat("rank ", *member, " waits in ", text(wait.action), " for ",
                                                   text(wait.other), " of rank ", other));
  }
  return absl::StrJoin(clauses, "; ");
}

}  // namespace trainyard
