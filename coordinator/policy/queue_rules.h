// The limits and weights of the queue, from the coordinator's configuration, and whether a submitted job respects them.
// Pure. policy/queue decides by them which jobs start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/problems.h"
#include "trainyard/v1/config.pb.h"

namespace trainyard {

inline constexpr char kDefaultNamespace[] = "default";
inline constexpr uint32_t kDefaultPriority = 50;
inline constexpr uint32_t kPriorityMax = 100;
// The entry of the configuration for all namespaces that are not listed. They form one pool: limits and weight apply to
// their sum, because a user who may choose a name could choose several.
inline constexpr char kOtherNamespaces[] = "*";

// If the save before its preemption fails, a job is not preempted for this long, and for twice as long after each
// further failure in a row.
inline constexpr absl::Duration kSpareTime = absl::Minutes(10);
inline constexpr uint32_t kSpareDoublings = 6;
inline constexpr absl::Duration kMaxSpareTime = absl::Minutes(10 << kSpareDoublings);
// The slots of a group that is formed again are kept for it this long, from the time at which it could start.
inline constexpr absl::Duration kKeepSlots = absl::Seconds(30);
// The snapshots of a group that is formed again stay in the memory of its hosts at most this long.
inline constexpr absl::Duration kKeepSnapshots = absl::Minutes(10);
static_assert(kKeepSlots < kKeepSnapshots);

// The maximum number of namespaces with unfinished jobs; each has series in the metrics.
inline constexpr size_t kNamespacesMax = 256;
// The maximum number of jobs that end at a time for one waiting job.
inline constexpr size_t kVictimsMax = 64;

// NamespaceConfig and QueueConfig in config.proto describe the fields.
struct NamespaceRules {
  uint64_t weight_milli = 1'000;
  std::optional<uint32_t> max_slots;
  std::optional<uint32_t> max_gpus;
  std::optional<uint32_t> max_running;
  std::optional<uint32_t> max_queued;
  uint32_t max_priority = kPriorityMax;
  bool preempts = true;
  bool preemptible = true;
};

struct QueueRules {
  absl::Duration overtake = absl::Minutes(10);
  uint32_t max_queued = 10'000;
  bool only_listed = false;
  std::map<std::string, NamespaceRules> namespaces;
  bool preemption = false;
  uint32_t min_priority_difference = 1;
  absl::Duration min_run = absl::Minutes(5);
  bool preempts_commands = false;
};

// Adds the problems that the rules of the schema do not find: names, duplicates, contradictions.
void CheckQueueConfig(const v1::QueueConfig& config, Problems* problems);
// REQUIRES: the defaults are applied, and there are no problems.
QueueRules MakeQueueRules(const v1::QueueConfig& config);

// Returns the pool whose limits a namespace shares: its own name, or "*" if only that entry applies to it.
std::string PoolOf(const QueueRules& rules, const std::string& name);
// Returns the rules of a pool; a pool that is not listed has no limits.
const NamespaceRules& RulesOf(const QueueRules& rules, const std::string& pool);

struct SubmissionFacts {
  std::string name;  // of the namespace
  uint32_t priority = kDefaultPriority;
  uint32_t min_ranks = 1;
  bool needs_gpu = false;
  uint64_t queued = 0;          // waiting jobs
  uint64_t queued_in_pool = 0;  // those of the namespace's pool
  bool is_new_namespace = false;
  uint64_t namespaces = 0;  // those with unfinished jobs
};

// Possible errors: FailedPrecondition: no amount of waiting would help; all problems, one per line. ResourceExhausted:
// too many jobs wait.
absl::Status CheckSubmission(const QueueRules& rules, const SubmissionFacts& facts);
// Returns why a job of this namespace must not have the priority; empty: it may.
std::string ProblemOfPriority(const QueueRules& rules, const std::string& name, uint32_t priority);

}  // namespace trainyard
