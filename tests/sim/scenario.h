// What happens to a world, as data: its hosts, the jobs that are submitted, what operators ask for, and what breaks
// when for how long. Drawn from a seed; a failing one is made smaller by leaving things out (shrink.h), which changes
// nothing of the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard::sim {

enum class FaultKind {
  kCrashCoordinator,  // what was not synced is forgotten
  kPauseCoordinator,  // SIGSTOP, then SIGCONT
  kSlowStore,         // every commit takes long
  kFullStore,         // no commit is taken
  kStepClock,         // the coordinator's clock is set
  kCrashDaemon,
  kKillHost,  // with all its processes; comes back with its disk
  kCrashTrainer,
  kFreezeTrainer,  // SIGSTOP, then SIGCONT
  kCutControl,     // between a host and the coordinator
  kCutHost,        // from everything
  kDropStream,     // the daemon's connection breaks
  kSilenceStream,  // half-open: nothing comes through, and nobody is told
  kFullDisk,       // of a host: its daemon can write nothing
  kLast = kFullDisk,
};
const char* NameOf(FaultKind kind);

struct Fault {
  FaultKind kind;
  absl::Duration at;
  absl::Duration lasts;
  uint32_t host = 0;
  uint64_t salt = 0;  // which of several, how much
};

enum class OperationKind { kCancel, kPause, kResume, kRestart, kDrain, kCordon, kUncordon, kLast = kUncordon };
const char* NameOf(OperationKind kind);

struct Operation {
  OperationKind kind;
  absl::Duration at;
  uint32_t job = 0;  // index
  uint32_t host = 0;
  bool now = false;
};

struct HostPlan {
  uint32_t slots = 1;
  absl::Duration clock_offset;
  double clock_drift = 0;
};

struct JobPlan {
  uint32_t number = 0;  // names it, also where others were left out
  absl::Duration at;
  uint32_t ranks = 1;
  uint32_t steps = 10;
  uint32_t save_every = 5;
  uint32_t evaluate_every = 0;
  uint32_t max_restarts = 1'000;
  absl::Duration step_time;
};

struct Scenario {
  uint64_t seed = 0;
  std::vector<HostPlan> hosts;
  std::vector<JobPlan> jobs;
  std::vector<Operation> operations;
  std::vector<Fault> faults;
  absl::Duration faults_end;  // from here on everything heals
};

Scenario DrawScenario(uint64_t seed);

// A table for people.
std::string Describe(const Scenario& scenario);

}  // namespace trainyard::sim
