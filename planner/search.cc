#include "planner/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "spec/job_layout.h"
#include "spec/model_parallel_rules.h"
#include "spec/parallel_rules.h"
#include "spec/prepare.h"

namespace trainyard::planner {
namespace {

constexpr char kDoesNotFit[] = "need more memory than their ranks have";
constexpr char kOtherVariant[] = "are other variants of a listed layout";
constexpr char kNotCompared[] = "come after the listed ones; their memory was not planned";
constexpr char kStarved[] = "have fewer micro-batches than stages, and others fit";
constexpr char kStopped[] = "were not checked, because the search had reached its limit";

// The prediction is not exact to a percent, so of two layouts whose times differ by less, the one with fewer features
// comes first.
constexpr double kShareOfFeature = 0.01;
// Twice the ranks must save a tenth of the time, or the smaller number of ranks comes first.
constexpr double kTimesOfTwiceTheRanks = 1.1;

int CountFeatures(const Layout& layout) {
  int count = 0;
  if (layout.data_ranks() > 1) {
    if (layout.data == v1::DATA_PARALLEL_ZERO1) count += 1;
    if (layout.data == v1::DATA_PARALLEL_ZERO2) count += 2;
    if (ShardsParameters(layout.data)) count += 3;
  }
  count += (layout.stages > 1 ? 1 : 0) + (layout.tensor > 1 ? 1 : 0) + (layout.chunks_per_rank > 1 ? 1 : 0);
  count += (layout.sequence ? 1 : 0) + (layout.reduce_every_micro_batch ? 1 : 0);
  return count + (layout.recompute != v1::RECOMPUTE_MODE_NONE ? 1 : 0);
}

// The number that layouts are ordered by, ascending.
double OrderOf(const Layout& layout, double seconds) {
  return seconds * (1 + kShareOfFeature * CountFeatures(layout)) *
         std::pow(kTimesOfTwiceTheRanks, std::log2(static_cast<double>(layout.ranks)));
}

// Whether the micro-batches of a pipeline are too few to keep its stages busy.
bool IsStarved(const Layout& layout, uint64_t global) {
  return layout.stages > 1 && RoundsOf(layout, global) < layout.stages;
}

// The first problem of a layout, without the advice, which is for a user who has chosen it.
std::string RefusalText(absl::string_view problems) {
  const absl::string_view first = problems.substr(0, problems.find('\n'));
  return absl::StrCat("are refused by the rules of job files: ", first.substr(0, first.find("; choose")));
}

// The rules of job files for what a layout decides; PrepareJob checks the whole job of those that fit.
std::string RuleProblem(const v1::JobSpec& resolved, const Layout& layout) {
  v1::JobSpec spec = resolved;
  ApplyLayout(layout, &spec);
  Problems problems;
  CheckModelParallel(spec, layout.ranks, {}, &problems);
  CheckParallel(spec, layout.data_ranks(), {}, &problems);
  CheckBatch(spec, layout.data_ranks(), {}, &problems);
  return problems.ok() ? "" : RefusalText(problems.Errors()[0].Message());
}

// Whether a rank holds the sums of all its gradients although the strategy shards them (spec/memory_plan.cc).
bool AddsUpAll(const Layout& layout, uint64_t global) {
  if (!ShardsGradients(layout.data) || layout.stages > 1) return true;
  return !layout.reduce_every_micro_batch && global > layout.micro * layout.data_ranks();
}

// Layouts of one kind compete with each other only; a plan lists the first of them.
std::string KindOfLayout(const Layout& layout, size_t pool) {
  return absl::StrCat(pool, "/", layout.ranks, "/", layout.stages, "/", layout.tensor, "/",
                      static_cast<int>(layout.data));
}

// Layouts that differ only in what LeastVariants chooses.
std::string StateGroup(const Layout& layout, size_t pool, const ModelWork& work) {
  // What replicated state needs on a device does not depend on the number of ranks. What offloaded state needs on a
  // host does.
  const bool offloads = layout.offload || work.offloads_optimizer || work.offloads_parameters;
  const bool is_replicated = layout.data == v1::DATA_PARALLEL_DDP && layout.stages == 1 && !offloads;
  return absl::StrCat(pool, "/", is_replicated ? 0 : layout.ranks, "/", layout.stages, "/", layout.tensor, "/",
                      static_cast<int>(layout.data), "/", layout.shard, "/", AddsUpAll(layout, work.global) ? 1 : 0);
}

// The layouts in the same group of which one needs the least memory for activations.
std::vector<Layout> LeastVariants(const Layout& layout, const ModelWork& work) {
  Layout least = layout;
  const bool adds_up_all = AddsUpAll(layout, work.global);
  least.micro = 1;
  least.chunks_per_rank = 1;
  least.sequence = layout.tensor > 1;
  least.recompute = v1::RECOMPUTE_MODE_BLOCKS;
  least.reduce_every_micro_batch = !adds_up_all && work.global > layout.data_ranks();
  std::vector<Layout> variants = {least};
  // Recomputing the only block of a rank saves nothing, unless several micro-batches are in flight.
  least.recompute = v1::RECOMPUTE_MODE_NONE;
  if (work.layers < 2 * layout.stages) variants.push_back(least);
  return variants;
}

}  // namespace

uint64_t NeededBytes(const Pool& pool, const MemoryPlan& memory) {
  return memory.device_total() + (pool.device == v1::DEVICE_CPU ? memory.host : 0);
}

bool FitsHost(const Pool& pool, uint64_t host_bytes) {
  return pool.host_memory_bytes == 0 || host_bytes <= pool.host_memory_bytes;
}

void LayoutSearch::Run(bool offload, JobPlan* plan) {
  Collect(offload, plan);
  const uint64_t last_plan = plan->memory_plans + kMemoryPlansMax;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const uint64_t left = candidates_.size() - i;
    if (plan->layouts.size() >= options_.top) {
      Reject(kNotCompared, left);
      break;
    }
    if (plan->memory_plans >= last_plan) {
      plan->stopped_early = true;
      Reject(kStopped, left);
      break;
    }
    Consider(candidates_[i], plan);
  }
  for (const auto& [reason, count] : rejected_) plan->rejected.push_back({.reason = reason, .count = count});
}

void LayoutSearch::Collect(bool offload, JobPlan* plan) {
  const JobFacts facts{.global = work_.global, .layers = work_.layers};
  for (size_t p = 0; p < pools_.size(); ++p) {
    const PreparedPool& prepared = pools_[p];
    // In the memory of a CPU, offloaded state would be in the same place.
    if (offload && prepared.pool->device != v1::DEVICE_CUDA) continue;
    for (const LayoutCell& cell : EnumerateCells(*prepared.pool, facts)) {
      if (!cell.refusal.empty()) {
        Reject(absl::StrCat("are not possible: ", cell.refusal));
        continue;
      }
      Layout simplest = cell.shape;
      for (const Layout& variant : cell.variants) simplest.micro = std::max(simplest.micro, variant.micro);
      const std::string problem = RuleProblem(prepared.resolved, simplest);
      if (!problem.empty()) {
        Reject(problem, cell.variants.size());
        continue;
      }
      for (Layout layout : cell.variants) {
        if (candidates_.size() >= kLayoutsMax) {
          plan->stopped_early = true;
          Reject(kStopped);
          continue;
        }
        layout.offload = offload;
        const double seconds = CostOfStep(work_, *prepared.pool, layout).seconds;
        candidates_.push_back({.layout = layout,
                               .pool = p,
                               .seconds = seconds,
                               .order = OrderOf(layout, seconds),
                               .starved = IsStarved(layout, work_.global)});
      }
    }
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.starved, a.order) < std::pair(b.starved, b.order);
  });
  plan->candidates += candidates_.size();
}

void LayoutSearch::Consider(const Candidate& candidate, JobPlan* plan) {
  const PreparedPool& prepared = pools_[candidate.pool];
  const Layout& layout = candidate.layout;
  const std::string kind = KindOfLayout(layout, candidate.pool);
  if (accepted_.count(kind) > 0) return Reject(kOtherVariant);
  // Candidates that are not starved come first.
  const bool others_fit = !plan->layouts.empty() && !IsStarved(plan->layouts[0].layout, work_.global);
  if (candidate.starved && others_fit) return Reject(kStarved);
  if (!LeastFits(candidate, plan)) return Reject(kDoesNotFit);
  const std::string group =
      absl::StrCat(StateGroup(layout, candidate.pool, work_), "/", layout.ranks, "/", layout.chunks_per_rank, "/",
                   static_cast<int>(layout.recompute), "/", layout.sequence ? 1 : 0);
  const auto too_large = too_large_.find(group);
  if (too_large != too_large_.end() && layout.micro >= too_large->second) return Reject(kDoesNotFit);
  if (const std::string problem = RuleProblem(prepared.resolved, layout); !problem.empty()) return Reject(problem);
  MemoryPlan memory;
  if (!Fits(candidate, &memory, plan)) {
    too_large_[group] = layout.micro;
    return Reject(kDoesNotFit);
  }
  // All that `trainctl validate` checks, on the job as a user would write it.
  const absl::StatusOr<PreparedJob> job =
      PrepareJob(WithLayout(*prepared.given, *prepared.pool, layout), {.job_id = "<id>", .default_run_root = "/runs"});
  if (!job.ok()) return Reject(RefusalText(job.status().message()));
  accepted_.insert(kind);
  plan->layouts.push_back({.layout = layout,
                           .pool = prepared.index,
                           .cost = CostOfStep(work_, *prepared.pool, layout),
                           .memory = memory,
                           .needed_bytes = NeededBytes(*prepared.pool, memory),
                           .bubble = PlanPipeline(job->spec).bubble,
                           .tokens_per_s = work_.rows_per_step() / candidate.seconds,
                           .reason = ""});
}

bool LayoutSearch::LeastFits(const Candidate& candidate, JobPlan* plan) {
  const std::string group = StateGroup(candidate.layout, candidate.pool, work_);
  const auto known = least_fits_.find(group);
  if (known != least_fits_.end()) return known->second;
  Candidate least = candidate;
  bool fits = false;
  for (const Layout& variant : LeastVariants(candidate.layout, work_)) {
    least.layout = variant;
    MemoryPlan memory;
    fits = fits || Fits(least, &memory, plan);
  }
  least_fits_[group] = fits;
  return fits;
}

bool LayoutSearch::Fits(const Candidate& candidate, MemoryPlan* memory, JobPlan* plan) {
  const PreparedPool& prepared = pools_[candidate.pool];
  const Pool& pool = *prepared.pool;
  v1::JobSpec spec = prepared.resolved;
  ApplyLayout(candidate.layout, &spec);
  *memory = PlanMemory(spec);
  ++plan->memory_plans;
  const uint64_t needed = NeededBytes(pool, *memory), usable = pool.usable_bytes();
  const uint64_t on_host = HostBytes(pool, candidate.layout, *memory);
  const bool fits_host = FitsHost(pool, on_host);
  if (needed <= usable && fits_host) return true;
  const auto share_of = [](uint64_t bytes, uint64_t available) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(available, 1));
  };
  const double share = std::max(share_of(needed, usable), fits_host ? 0 : share_of(on_host, pool.host_memory_bytes));
  if (plan->nearest.empty() || share < plan->nearest[0].share) {
    plan->nearest.assign(1, NearMiss{.layout = candidate.layout,
                                     .pool = prepared.index,
                                     .needed_bytes = needed,
                                     .host_bytes = on_host,
                                     .share = share});
  }
  return false;
}

}  // namespace trainyard::planner
