// What happens to a world, as data: its hosts, the submitted jobs, the operators' requests, and which faults occur when
// and for how long. It is drawn from a seed. A failing scenario is reduced by leaving parts out (shrink.h); the
// other parts stay as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::sim {

enum class FaultKind {
  kCrashCoordinator,  // loses what was not synced
  kPauseCoordinator,  // SIGSTOP, then SIGCONT
  kSlowStore,         // every commit takes long
  kFullStore,         // no commit is accepted
  kStepClock,         // the coordinator's wall clock is set, with effect at its next start
  kCrashDaemon,
  kKillHost,  // a host dies with all its processes, and comes back with its disk
  kCrashTrainer,
  kFreezeTrainer,  // SIGSTOP, then SIGCONT
  kCutControl,     // no network between a host and the coordinator
  kCutHost,        // no network between a host and anything else
  kDropStream,     // the connection breaks
  kSilenceStream,  // half-open: nothing is delivered, and neither end is notified
  kFullDisk,       // the disk of a host is full: its daemon cannot write
  kStopDaemon,     // SIGTERM: it exits and its trainers continue; it is started again later
  kStopHost,       // SIGTERM with --stop-trainers
  kCutData,        // no network between the trainers of two hosts; both reach the coordinator
  kSlowTrainer,    // it computes 1.5 to 2.9 times as long
  kLossyLink,      // a host's packets are lost and resent: all its messages are late, but nothing is cut
  // When a trainer of the host is at some point of a save, one of these happens: the trainer, the daemon, the
  // coordinator or the host crashes; the first three crash together; the trainer is stopped while its host is cut off.
  kStrikeSave,
  kFailWrites,  // the trainers of a host cannot write into run folders: no space left
  // Only in jobs with a divided model: a trainer leaves out an operation that another one waits for.
  kLeaveOut,
  kLastOfAnyJob = kFailWrites,
  kLast = kLeaveOut,
};
// "crash-coordinator"
const char* NameOf(FaultKind kind);
bool IsOfHost(FaultKind kind);

// The moment at which a generation of a job reaches a state.
struct Trigger {
  uint32_t job = 0;  // the number of the job
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  uint64_t generation = 0;
};

struct Fault {
  FaultKind kind;
  absl::Duration at;  // after the trigger, if there is one
  absl::Duration lasts;
  uint32_t host = 0;
  uint64_t salt = 0;  // a random number that chooses the target or the amount
  std::optional<Trigger> when = {};
};

inline constexpr double kMaxLoss = 0.4;
// The number of micro-batches that each data rank of a job with a divided model runs in a step.
inline constexpr int kMicroBatches = 4;

enum class OperationKind {
  kCancel,
  kPause,
  kResume,
  kRestart,
  kDrain,
  kCordon,
  kUncordon,
  kSave,
  kCancelSaved,
  kLastOfAnyJob = kCancelSaved,
  // Only in worlds with a queue plan.
  kSetPriority,
  kLast = kSetPriority
};
const char* NameOf(OperationKind kind);

struct Operation {
  OperationKind kind;
  absl::Duration at;
  uint32_t job = 0;  // the number of the job minus 1
  uint32_t host = 0;
  bool now = false;
  uint32_t priority = 0;  // of kSetPriority
};

struct HostPlan {
  uint32_t slots = 1;
  absl::Duration clock_offset;
  double clock_drift = 0;
};

struct JobPlan {
  uint32_t number = 0;  // identifies the job; stays the same if other jobs are left out
  absl::Duration at;
  uint32_t ranks = 1;
  uint32_t steps = 10;
  uint32_t save_every = 5;
  uint32_t evaluate_every = 0;
  uint32_t max_restarts = 1'000;
  absl::Duration step_time;
  uint32_t folder_of = 0;  // the number of another job whose checkpoint.dir it shares; 0: it has its own
  uint32_t stages = 1;     // parallel.pipeline.stages
  uint32_t tensor = 1;     // parallel.tensor
  uint32_t priority = 50;
  std::string name_space = "default";

  // For a job with `command`: its script works with any number of ranks from `min_ranks` to `ranks`, does `steps` units
  // of work, and stores its progress after every `save_every` units. 0: the job has no `command`.
  uint32_t min_ranks = 0;
  uint32_t ranks_per_host = 0;                      // command.ranks_per_host; 0: not given
  absl::Duration grow_after = absl::Seconds(5);     // command.grow_after_s
  absl::Duration grace = absl::Milliseconds(1500);  // command.grace_s
  bool ignores_stop = false;                        // its processes ignore SIGTERM

  bool is_script() const { return min_ranks > 0; }
  bool divides_model() const { return stages > 1 || tensor > 1; }
};

struct NamespacePlan {
  std::string name;
  uint32_t max_slots = 0;  // 0: no limit
  uint32_t weight_milli = 1'000;
};

// The coordinator's configuration of the queue; the defaults are those of a coordinator without this part.
struct QueuePlan {
  absl::Duration overtake = absl::Minutes(10);
  bool preemption = false;
  absl::Duration min_run = absl::Minutes(5);
  std::vector<NamespacePlan> namespaces = {};

  bool any() const { return preemption || !namespaces.empty() || overtake != absl::Minutes(10); }
};

struct Scenario {
  uint64_t seed = 0;
  std::vector<HostPlan> hosts;
  std::vector<JobPlan> jobs;
  std::vector<Operation> operations;
  std::vector<Fault> faults;
  absl::Duration faults_end;     // from here on no fault begins and operators help all jobs to end
  double coordinator_drift = 0;  // of its clock, as in ClockModel
  double loss = 0;               // the share of every host's packets that is lost, until the end
  QueuePlan queue = {};
  absl::Duration extra_time = {};  // the time that jobs need in addition to the usual limit
};

Scenario DrawScenario(uint64_t seed);
// A scenario for thousands of hosts: some die, are cut off, lose packets or get a new daemon, some trainers crash, and
// the coordinator crashes once.
Scenario DrawLargeScenario(uint64_t seed, uint32_t hosts, uint32_t jobs);
// Jobs that train for this long over links that lose packets, without other faults.
Scenario DrawLossyScenario(uint64_t seed, absl::Duration time);

}  // namespace trainyard::sim
