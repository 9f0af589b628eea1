// Decides which waiting jobs start, which running jobs end for them, and why each other job waits. Pure.
// docs/decisions/0014-queueing.md explains the rules.
//
// Order: jobs that start again (after a failure, a restart or a drain); then by priority; then weighted fairness
// between namespaces; within a namespace by submission. Fairness is dominant resource fairness with progressive
// filling: the share of a namespace is the larger of the fractions of all slots and of all GPUs that it uses, divided
// by its weight. The next job is of the namespace with the smallest share, and what the job needs is added to this
// share. The same order holds for starting and for preemption, so that no job is preempted for one that it would
// overtake.
//
// A job that does not fit is overtaken until it has waited for QueueRules::overtake. From then on, and while jobs end
// for it, no job behind it in the order starts on slots that it could use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/queue_rules.h"

namespace trainyard {

// What the jobs of a pool of namespaces use: those with a group, and those that start again.
struct PoolUse {
  uint64_t slots = 0;
  uint64_t gpus = 0;
  uint64_t running = 0;
};

struct WaitingJob {
  uint64_t index = 0;  // of its submission
  JobId id;
  std::string pool;
  uint32_t priority = kDefaultPriority;
  bool continues = false;      // it starts again; the use of its pool still includes it
  uint32_t had_ranks = 0;      // of a job that continues: the ranks of its last group
  RanksByHost kept;            // the ranks of its last group whose slots are kept for it, so they are not free
  bool wants_gpus = false;     // each of its ranks may compute on a GPU
  bool is_preempting = false;  // jobs are ending for it
  std::vector<JobId> victims;  // the jobs that are ending for it
  absl::Duration waited;
  std::string not_yet;       // why it must not start now, although it waits: the delay before a restart; empty: it may
  bool wants_reason = true;  // false: no caller reads why it waits
  PlacementFacts placement;  // without hosts
};

// A job with a group.
struct RunningJob {
  JobId id;
  std::string pool;
  uint32_t priority = kDefaultPriority;
  RanksByHost ranks;    // those that have not ended
  uint32_t cpus = 0;    // of each rank
  PoolUse use;          // what its pool no longer uses when the whole job has ended: also that of ranks that have ended
  bool ending = false;  // it is ending already, so its slots become free
  std::string protection;   // why it must not be preempted: "job ab12 is protected for 5m"; empty: it may
  uint64_t unsaved_ms = 0;  // the time of all ranks that is lost if the save fails
  absl::Time began = absl::InfinitePast();
};

struct QueueFacts {
  const QueueRules* rules = nullptr;
  absl::Span<const HostSlots> hosts = {};  // sorted by SortByTopology
  std::map<std::string, PoolUse> use;
  std::vector<WaitingJob> waiting;
  std::vector<RunningJob> running;
  // Every known host has attached or has had the time to do so, so the free slots are known.
  bool settled = true;
  // Whether victims may be chosen. False if `waiting` is only a part of the queue.
  bool may_preempt = true;
  // Among the jobs that need a reason, the first `reasons_skipped` in the order get none, and the next `reasons` jobs
  // that wait get one; those of the others are empty. A reason takes much longer than the decision, because it names
  // hosts.
  size_t reasons = SIZE_MAX;
  size_t reasons_skipped = 0;
};

enum class WaitCause { kNone, kSlots, kQuota, kPreemption, kBehind, kDelay };
// "slots"; empty for kNone.
const char* WaitCauseName(WaitCause cause);

struct QueueOutcome {
  size_t waiting = 0;                // index in QueueFacts::waiting
  std::optional<RanksByHost> start;  // it starts on these hosts
  std::vector<JobId> preempt;        // these jobs end for it
  WaitCause cause = WaitCause::kNone;
  std::vector<JobId> waits_for;  // the jobs that end for it, or the one that its slots are reserved for
  std::string reason;            // why it starts, or why it waits
};

// Returns the indexes of the waiting jobs in the order of the queue.
std::vector<size_t> OrderQueue(const QueueFacts& facts);
// Returns one outcome for each waiting job, in the order of the queue.
std::vector<QueueOutcome> DecideQueue(const QueueFacts& facts);

}  // namespace trainyard
