// The durations of a pipeline's actions, as given to `trainctl schedule`, for each number of micro-batches. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plan/pipeline_schedule.h"

namespace trainyard::client {

// The measured durations of one micro-batch in a stage, while a step was divided into `micro_batches`.
struct MeasuredStage {
  int micro_batches = 1;
  double forward = 0;
  double backward = 0;
  double link = 0;
};

// Parses M:FORWARD:BACKWARD or M:FORWARD:BACKWARD:LINK. Possible errors: InvalidArgument, which quotes `text`.
absl::StatusOr<MeasuredStage> ParseMeasured(absl::string_view text);

// All durations have one unit. A list has one entry, for a stage, or one for each model chunk; empty: not given.
struct ScheduleDurations {
  // The durations of a micro-batch or, with `samples`, of one sample. A single duration is divided among the chunks of
  // a stage.
  std::vector<double> forward = {};   // default: 1
  std::vector<double> backward = {};  // default: 2
  std::optional<double> link = {};    // default: 0
  double weight_share = 0.5;          // the part of a backward that computes weight gradients

  // The samples of a step in one pipeline, which its micro-batches share.
  std::optional<int> samples = {};
  // What each action adds to the duration of its samples, in every chunk.
  std::vector<double> fixed_forward = {};   // default: 0
  std::vector<double> fixed_backward = {};  // default: 0
  std::optional<double> fixed_link = {};    // default: 0

  std::vector<MeasuredStage> measured = {};

  // Whether the durations of a micro-batch depend on the number of micro-batches: a step has a fixed size, and more
  // micro-batches are smaller ones. Otherwise every micro-batch has the given durations, whatever their number.
  bool of_one_step() const { return samples.has_value() || !measured.empty(); }
};

// Every problem of `durations` that does not depend on a shape. The messages name the options.
std::vector<std::string> DurationProblems(const ScheduleDurations& durations);

struct StepCosts {
  PipelineCosts costs = {};
  int samples = 0;      // of a micro-batch; 0: unknown
  double overhead = 0;  // computation that smaller micro-batches cause, as a sum over all ranks of a step
};

// The costs of a step of `shape`. The overhead is the sum of the fixed durations or, for measured durations, the
// computation of the step minus the least computation of any measured number of micro-batches. Possible errors:
// InvalidArgument: micro-batches that do not divide the samples, or whose durations were not measured; lists that
// differ in length. Other problems are left to CheckCosts and MakeSchedule. REQUIRES: DurationProblems is empty.
absl::StatusOr<StepCosts> CostsOfStep(const ScheduleDurations& durations, const PipelineShape& shape);

}  // namespace trainyard::client
