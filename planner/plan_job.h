// Chooses a layout for a job on given machines: enumerates layouts (layout.h), orders them (search.h) by the time of a
// step that the cost model predicts (step_cost.h), and takes the first ones that the rules of job files accept and that
// fit into memory by the plan that `trainctl validate --memory` prints. Pure; the same result for the same input.
//
//   ASSIGN_OR_RETURN(JobPlan plan, PlanJob(spec, pools, {.top = 5}));
//   plan.layouts[0]     // the recommended one; none: nothing fits
//
// Every step of a job costs the same here, so plans are for workloads that do not change while they run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/decision_tree.h"
#include "planner/dimensions.h"
#include "planner/layout.h"
#include "planner/machines.h"
#include "planner/model_work.h"
#include "planner/step_cost.h"
#include "spec/memory_plan.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::planner {

// Each takes about a millisecond, so that a plan takes less than a second for any number of ranks.
inline constexpr uint64_t kMemoryPlansMax = 400;
inline constexpr uint64_t kLayoutsMax = 200'000;

struct PlanOptions {
  uint64_t top = 5;  // layouts to return
};

struct PlannedLayout {
  Layout layout;
  uint64_t pool = 0;  // the index of its pool
  StepCost cost;
  MemoryPlan memory;
  uint64_t needed_bytes = 0;  // on the device of a rank
  double bubble = 0;          // the idle share of the schedule, as `trainctl validate` prints it
  double tokens_per_s = 0;    // rows: tokens, or samples of a classifier
  std::string reason;
};

// Layouts that were not chosen, by reason, most frequent first.
struct Rejection {
  std::string reason;
  uint64_t count = 0;
};

// A layout that does not fit.
struct NearMiss {
  Layout layout;
  uint64_t pool = 0;
  uint64_t needed_bytes = 0;  // on the device of a rank
  uint64_t host_bytes = 0;    // of offloaded state, on a host
  double share = 0;           // of the memory that is too small: of the device, or of the host
};

struct JobPlan {
  std::vector<PlannedLayout> layouts;  // the best first; at most one for each combination of ranks and strategies
  std::vector<Rejection> rejected;
  uint64_t candidates = 0;     // layouts whose time was predicted
  uint64_t memory_plans = 0;   // layouts whose memory was planned
  bool stopped_early = false;  // at kMemoryPlansMax or kLayoutsMax
  TreeFacts facts;
  TreeAnswer tree;
  bool tree_agrees = false;  // the first layout is one of the tree's alternatives
  ModelWork work;
  LayoutKeys job_keys;            // of the job as it was given; set by the caller, for the output
  std::vector<NearMiss> nearest;  // if there are no layouts: the one that comes nearest to fitting
  uint64_t enough_ranks = 0;      // if there are no layouts: with so many, on more equal hosts, one fits; 0: unknown
};

// REQUIRES: `spec` trains and was read without errors (spec/job_file.h), `pools` is not empty. The keys of `spec` that
// ApplyLayout sets are replaced; its other keys stay.
// Possible errors: InvalidArgument: the job cannot run on the device of any pool; lists the problems of its spec.
absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& spec, const std::vector<Pool>& pools, const PlanOptions& options);

// The job with the keys of `layout` and the device of `pool`.
v1::JobSpec WithLayout(const v1::JobSpec& spec, const Pool& pool, const Layout& layout);

// The bytes that the ranks of one host offload to its memory.
uint64_t HostBytes(const Pool& pool, const Layout& layout, const MemoryPlan& memory);

// The keys alone, as YAML that can be copied into a job file.
std::string KeysOfLayout(const Pool& pool, const Layout& layout);

}  // namespace trainyard::planner
