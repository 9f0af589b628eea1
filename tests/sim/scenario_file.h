// The text format of scenarios, with one item per line. It is used for scenarios that once failed (regressions/) and
// for scenarios that are written by hand.
//
//   # Why this scenario exists.
//   seed 50749                                   seed of the random choices in the models
//   mutation start-twice                         a planted bug; `breaks` names the violated invariant
//   faults-end 45s
//   coordinator-drift 0.0003
//   loss 0.25                                    the share of every host's packets that is lost
//   extra-time 20m
//   queue overtake=10m min-run=5s preemption
//   namespace research slots=2 weight-milli=500
//   host slots=2 offset=-3.5s drift=0.0005
//   job 1 at=2s ranks=3 steps=38 step=640ms save=11 evaluate=0 restarts=1000
//   job 2 at=2s ranks=8 steps=38 step=640ms stages=2 tensor=2    a divided model, in two copies
//   job 3 at=2s ranks=4 steps=90 step=640ms min-ranks=2 per-host=2 grow-after=5s grace=1s ignores-stop=1    a script
//   operation drain at=10s host=0 now
//   fault cut-control host=0 at=17.6s lasts=20s salt=3
//   fault cut-control host=0 when=running:2 job=1 at=0s lasts=20s     `at` counts from when generation 2 is RUNNING
//   expect job=1 state=succeeded generation=1
//   expect log "is slow"                        a line of the coordinator's log contains this
//   expect no-log "is lost"
//   breaks rank-once
//
// A job may also have folder-of=, priority= and namespace=. What a host, a job or a fault leaves out has the
// default of scenario.h. Without `breaks`, every invariant must hold.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/sim/mutation.h"
#include "tests/sim/world.h"

namespace trainyard::sim {

struct JobExpectation {
  uint32_t job = 0;
  std::optional<v1::JobState> state;
  std::optional<uint64_t> generation;
};

struct ScenarioFile {
  std::string why = {};  // the comment of the file, without '#'
  Scenario scenario;
  Mutation mutation = Mutation::kNone;
  std::vector<JobExpectation> jobs = {};
  std::vector<std::string> logged = {};
  std::vector<std::string> not_logged = {};
  std::string breaks = {};  // an invariant; empty: none may be broken
};

// Possible errors: InvalidArgument with the line.
absl::StatusOr<ScenarioFile> ParseScenarioFile(absl::string_view text);
// ParseScenarioFile reads the result as an equal ScenarioFile.
std::string FormatScenarioFile(const ScenarioFile& scenario_file);

// Runs the scenario; `result_out`, if given, receives the result with its trace. Possible errors: FailedPrecondition,
// with the expectations that were not met.
absl::Status Replay(const ScenarioFile& scenario_file, Result* result_out = nullptr);

}  // namespace trainyard::sim
