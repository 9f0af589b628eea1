// The output of `trainctl schedule`: a drawing with its figures, a table of several schedules, or JSON. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/schedule_simulation.h"

namespace trainyard::client {

// One requested schedule. `status` is OK and all fields are set, or it says why there is no schedule.
struct ScheduleResult {
  ScheduleKind kind = ScheduleKind::kGpipe;
  PipelineShape shape;
  absl::Status status;
  PipelineSchedule schedule = {};
  PipelineSimulation simulation = {};
  // The computation that smaller micro-batches cost in addition (StepCosts::overhead, schedule_costs.h), as a share of
  // the time of all ranks. Set if all results are of the same step, which they divide into micro-batches differently.
  std::optional<double> overhead = {};
  int samples = 0;  // of a micro-batch; 0: unknown
};

// "1f1b, 4 stages, 8 micro-batches: time 33, bubble 27.3 %, at most 4 micro-batches in flight".
std::string ScheduleTitle(const ScheduleResult& result);

// The title, the drawing, and the busy time, bubble and peak in flight of each rank. REQUIRES: result.status is OK.
std::string ScheduleReport(const ScheduleResult& result, int columns);

// A row for each result, and below them the reasons of those that have no schedule. The column IN FLIGHT
// counts in micro-batches of a whole stage: if a rank has two chunks, 4 micro-batches in one of them count as 2. If the
// results divide one step, the table also has their overhead, and ends with FastestText.
std::string ScheduleTable(const std::vector<ScheduleResult>& results, int columns);

// Names the fastest of several results of one step, and why its schedule is slower with the smallest and with the
// largest number of micro-batches; or says that numbers beyond these may be faster. Empty if their times cannot be
// compared.
std::string FastestText(const std::vector<ScheduleResult>& results);

// {"schedules": [...], "fastest": {...}}; with `actions`, each schedule has the actions of its ranks with their times.
// "fastest" exists if FastestText is not empty.
std::string ScheduleJson(const std::vector<ScheduleResult>& results, bool actions);

}  // namespace trainyard::client
