// The search behind plan_job.h, for one setting of offload: from the layout with the shortest predicted step to slower
// ones, until enough of them fit. Each feature counts as one percent of the time, twice the ranks as ten percent, and
// pipelines with fewer micro-batches than stages come last. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "planner/plan_job.h"
#include "spec/memory_plan.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::planner {

// A pool, and the job as it would be prepared for one rank of it.
struct PreparedPool {
  uint64_t index = 0;
  const Pool* pool = nullptr;
  const v1::JobSpec* given = nullptr;  // as read
  v1::JobSpec resolved;                // prepared, on one rank
};

// The bytes that a rank needs on its device. On a CPU, offloaded state is in the same memory.
uint64_t NeededBytes(const Pool& pool, const MemoryPlan& memory);
// Whether a host has the memory for what its ranks offload (HostBytes).
bool FitsHost(const Pool& pool, uint64_t host_bytes);

class LayoutSearch {
 public:
  // Does not own its arguments, which must outlive it.
  LayoutSearch(const std::vector<PreparedPool>& pools, const ModelWork& work, const PlanOptions& options)
      : pools_(pools), work_(work), options_(options) {}

  // Adds layouts, rejections and counts to `plan`.
  void Run(bool offload, JobPlan* plan);

 private:
  struct Candidate {
    Layout layout;
    size_t pool = 0;  // in pools_
    double seconds = 0;
    double order = 0;      // the seconds, with a surcharge for features and ranks
    bool starved = false;  // a pipeline with fewer micro-batches than stages: considered last
  };

  void Collect(bool offload, JobPlan* plan);
  // Accepts or rejects one candidate.
  void Consider(const Candidate& candidate, JobPlan* plan);
  // Whether a least variant of a group of layouts fits; the answer is remembered.
  bool LeastFits(const Candidate& candidate, JobPlan* plan);
  // Whether the layout fits. Plans its memory, and remembers the layout that comes nearest to fitting.
  bool Fits(const Candidate& candidate, MemoryPlan* memory, JobPlan* plan);
  void Reject(const std::string& reason, uint64_t count = 1) { rejected_[reason] += count; }

  const std::vector<PreparedPool>& pools_;
  const ModelWork& work_;
  const PlanOptions& options_;
  std::vector<Candidate> candidates_;
  std::map<std::string, uint64_t> rejected_;
  std::map<std::string, bool> least_fits_;     // by group
  std::map<std::string, uint64_t> too_large_;  // by group: the smallest micro-batch that did not fit
  std::set<std::string> accepted_;             // kinds: strategies and ranks
};

}  // namespace trainyard::planner
