// What each action of a schedule waits for, and the execution of a schedule by these rules. The base of CheckSchedule
// and Simulate. Pure.
//
// A rank executes its list in order. An action begins by receiving its packet, if its input comes from another rank,
// and ends by sending its output. Per pair of ranks and direction (activations or gradients) a link delivers packets in
// the order in which they were sent and holds `slots` of them: a send waits only while the link is full, until the
// receiver has begun the action that receives an earlier packet.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline_schedule.h"

namespace trainyard {

// Actions are numbered over all ranks: the number of ranks[r][i] is first[r] + i. -1: none.
struct ScheduleGraph {
  std::vector<int> first;       // of each rank: the number of its first action; then the number of all actions
  std::vector<int> rank;        // of each action
  std::vector<int> input;       // the action of the neighbouring model chunk whose output this action needs
  std::vector<bool> receives;   // whether that output arrives on a link
  std::vector<int> frees_slot;  // the action that must have begun before this action's packet has a slot
};

// Problems of the lists themselves: sizes, unknown, missing and duplicate actions, a backward before its forward, the
// gradients of weights before those of inputs. Empty: the graph can be built.
std::vector<std::string> ListProblems(const PipelineSchedule& schedule);

// Appends to `problems` every link whose receiver needs packets in another order than they are sent; if there is no
// such link, the graph is complete. REQUIRES: ListProblems is empty, slots >= 1.
ScheduleGraph BuildScheduleGraph(const PipelineSchedule& schedule, int slots, std::vector<std::string>* problems);

struct ScheduleRun {
  std::vector<double> start;  // when each action began, after it had received its input
  std::vector<double> end;    // when its computation ended
  std::vector<double> sent;   // when its output was sent, so that the rank was free again
  // The position of each rank in its list at the end of the run: the length of the list, or the action in which the
  // rank waits forever.
  std::vector<int> position;
  bool finished = false;
};

// REQUIRES: `graph` is complete, and CheckCosts(costs) is OK.
ScheduleRun RunSchedule(const PipelineSchedule& schedule, const ScheduleGraph& graph, const PipelineCosts& costs);

// "rank 0 waits in F2 for a free slot to send to rank 1, which must begin F0 first; ...": the ranks that wait for each
// other in a run that has not finished.
std::string DescribeDeadlock(const PipelineSchedule& schedule, const ScheduleGraph& graph, const ScheduleRun& run);

}  // namespace trainyard
