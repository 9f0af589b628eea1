#include "plan/schedule_check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/schedule_graph.h"

namespace trainyard {
namespace {

constexpr int kMaxRanksShown = 16;
constexpr int kMaxActionsShown = 32;

absl::Status Refuse(const PipelineSchedule& schedule, const std::vector<std::string>& problems) {
  return absl::InvalidArgumentError(absl::StrCat("the pipeline schedule cannot run:\n", absl::StrJoin(problems, "\n"),
                                                 "\n", ScheduleLists(schedule, kMaxRanksShown, kMaxActionsShown)));
}

}  // namespace

absl::Status CheckSchedule(const PipelineSchedule& schedule, int slots_per_link) {
  std::vector<std::string> problems = ListProblems(schedule);
  if (slots_per_link < 1)
    problems.push_back(absl::StrCat("slots_per_link is ", slots_per_link, "; it must be 1 or more"));
  if (!problems.empty()) return Refuse(schedule, problems);
  const ScheduleGraph graph = BuildScheduleGraph(schedule, slots_per_link, &problems);
  if (!problems.empty()) return Refuse(schedule, problems);
  const ScheduleRun run = RunSchedule(schedule, graph, {.slots_per_link = slots_per_link});
  if (run.finished) return absl::OkStatus();
  return Refuse(schedule, {absl::StrCat("deadlock with ", slots_per_link,
                                        " slots per link: ", DescribeDeadlock(schedule, graph, run))});
}

}  // namespace trainyard
