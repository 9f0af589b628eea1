#include "planner/plan_job.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "planner/search.h"
#include "spec/choices.h"
#include "spec/parallel_rules.h"
#include "spec/prepare.h"

namespace trainyard::planner {
namespace {

// The job on one rank of the pool, before and after PrepareJob. `spec` must outlive the result.
absl::StatusOr<PreparedPool> PrepareFor(const v1::JobSpec& spec, const Pool& pool, uint64_t index) {
  PreparedPool prepared{.index = index, .pool = &pool, .given = &spec, .resolved = {}};
  ASSIGN_OR_RETURN(PreparedJob job,
                   PrepareJob(WithLayout(spec, pool, Layout()), {.job_id = "<id>", .default_run_root = "/runs"}));
  prepared.resolved = std::move(job.spec);
  return prepared;
}

uint64_t BytesOfLayout(const PreparedPool& prepared, const Layout& layout, bool one_sequence) {
  v1::JobSpec spec = prepared.resolved;
  ApplyLayout(layout, &spec);
  if (one_sequence) spec.mutable_train()->mutable_batch()->set_global_size(1);
  return NeededBytes(*prepared.pool, PlanMemory(spec));
}

TreeFacts FactsOf(const PreparedPool& prepared, const ModelWork& work) {
  const Pool& pool = *prepared.pool;
  TreeFacts facts{.hosts = pool.hosts,
                  .usable_bytes = pool.usable_bytes(),
                  .whole_bytes = BytesOfLayout(prepared, Layout(), false),
                  .layer_bytes = 0,
                  .fast_inside = IsFast(pool.inside),
                  .fast_between = IsFast(pool.between)};
  // A pipeline with a stage for each block; the first one has the embedding, too, and the last one the head.
  Layout by_layer;
  by_layer.ranks = by_layer.stages = work.layers;
  facts.layer_bytes = BytesOfLayout(prepared, by_layer, true);
  return facts;
}

std::string StrategyReason(const Pool& pool, const Layout& layout) {
  const uint64_t ranks = layout.data_ranks();
  if (ranks == 1) return "";
  switch (layout.data) {
    case v1::DATA_PARALLEL_ZERO1:
      return absl::StrCat("zero1 divides the optimizer state among ", ranks, " ranks");
    case v1::DATA_PARALLEL_ZERO2:
      return absl::StrCat("zero2 divides optimizer state and gradients among ", ranks, " ranks");
    case v1::DATA_PARALLEL_FSDP:
      return absl::StrCat("fsdp divides all state among ", ranks, " ranks");
    case v1::DATA_PARALLEL_HSDP:
      return absl::StrCat("hsdp divides all state among the ", layout.shard, " data ranks of each host, so that only ",
                          "sums of gradients cross the links between ", pool.hosts, " hosts");
    default:
      return absl::StrCat("ddp divides the batch among ", ranks, " ranks");
  }
}

// Empty if nothing is offloaded.
std::string OffloadReason(const PlannedLayout& planned, const Pool& pool) {
  if (planned.memory.host == 0 || pool.device != v1::DEVICE_CUDA) return "";
  const Layout& layout = planned.layout;
  const uint64_t on_host = HostBytes(pool, layout, planned.memory);
  return absl::StrCat("offload keeps ",
                      !layout.offload                 ? "what the job says"
                      : ShardsParameters(layout.data) ? "the optimizer state and the parameters"
                                                      : "the optimizer state",
                      " in host memory (",
                      pool.host_memory_bytes > 0 ? NeedText(on_host, pool.host_memory_bytes) : MemoryText(on_host),
                      " on each host", pool.host_memory_bytes > 0 ? "" : ", whose memory is assumed to be unlimited",
                      ")", layout.offload ? ", because nothing else fits" : "");
}

// Empty if all data ranks have equally many sequences.
std::string IdleReason(const Layout& layout, uint64_t global) {
  const uint64_t ranks = layout.data_ranks();
  const DealShape deal = DealShapeOf(global, layout.micro, ranks);
  if (deal.idle == 0) return "";
  const double share = static_cast<double>(deal.idle) / static_cast<double>(deal.rounds * ranks);
  return absl::StrFormat(
      "the batch cannot be divided equally, so that the %d data ranks are idle for %.0f %% of a step's computation; "
      "train.batch.global %s can be",
      ranks, 100 * share, MultiplesAround(global, ranks));
}

std::string ReasonOf(const PlannedLayout& planned, const Pool& pool, const TreeFacts& facts, uint64_t global) {
  const Layout& layout = planned.layout;
  std::vector<std::string> parts;
  const std::string whole = NeedText(facts.whole_bytes, facts.usable_bytes);
  if (facts.whole_bytes <= facts.usable_bytes) {
    parts.push_back(absl::StrCat("the model fits on one rank, which needs ", whole));
  } else {
    parts.push_back(absl::StrCat("does not fit without sharding: needs ", whole, "; here a rank needs ",
                                 MemoryText(planned.needed_bytes)));
  }
  if (std::string strategy = StrategyReason(pool, layout); !strategy.empty()) parts.push_back(std::move(strategy));
  if (layout.tensor > 1) {
    parts.push_back(absl::StrCat("tensor ", layout.tensor, " divides layers within a host of ",
                                 Plural(pool.ranks_per_host, "rank")));
  }
  if (layout.stages > 1) {
    parts.push_back(absl::StrCat(layout.stages, " stages exchange activations only",
                                 layout.ranks > pool.ranks_per_host ? ", which suits the links between hosts" : ""));
  }
  if (layout.recompute != v1::RECOMPUTE_MODE_NONE) {
    parts.push_back(absl::StrFormat("recompute saves activations for %.1f %% of a step",
                                    100 * planned.cost.recompute / planned.cost.seconds));
  }
  for (std::string more : {OffloadReason(planned, pool), IdleReason(layout, global)}) {
    if (!more.empty()) parts.push_back(std::move(more));
  }
  parts.push_back(absl::StrFormat("communication takes %.1f %% of a step", 100 * planned.cost.communication_share()));
  if (layout.stages > 1) {
    parts.push_back(absl::StrFormat("the bubble of the schedule is %.1f %%", 100 * planned.bubble));
  }
  return absl::StrJoin(parts, "; ");
}

// The first of twice, four times, ... the ranks of the pool, on more hosts of its kind, with which fsdp with recompute
// fits; 0 if none is enough.
uint64_t EnoughRanks(const PreparedPool& prepared, const ModelWork& work) {
  const Pool& pool = *prepared.pool;
  Layout layout;
  layout.data = v1::DATA_PARALLEL_FSDP;
  layout.recompute = v1::RECOMPUTE_MODE_BLOCKS;
  for (layout.ranks = 2 * pool.ranks(); layout.ranks <= kRanksMax; layout.ranks *= 2) {
    layout.reduce_every_micro_batch = work.global > layout.ranks;
    v1::JobSpec spec = prepared.resolved;
    ApplyLayout(layout, &spec);
    const MemoryPlan memory = PlanMemory(spec);
    const bool fits = NeededBytes(pool, memory) <= pool.usable_bytes();
    if (fits && FitsHost(pool, HostBytes(pool, layout, memory))) return layout.ranks;
  }
  return 0;
}

// Adds up equal reasons of two searches.
void CombineRejections(std::vector<Rejection>& rejected) {
  std::map<std::string, uint64_t> counts;
  for (const Rejection& each : rejected) counts[each.reason] += each.count;
  rejected.clear();
  for (const auto& [reason, count] : counts) rejected.push_back({.reason = reason, .count = count});
  std::stable_sort(rejected.begin(), rejected.end(),
                   [](const Rejection& a, const Rejection& b) { return a.count > b.count; });
}

}  // namespace

v1::JobSpec WithLayout(const v1::JobSpec& spec, const Pool& pool, const Layout& layout) {
  v1::JobSpec out = spec;
  ApplyLayout(layout, &out);
  out.mutable_resources()->set_device(pool.device);
  return out;
}

uint64_t HostBytes(const Pool& pool, const Layout& layout, const MemoryPlan& memory) {
  return std::min(layout.ranks, pool.ranks_per_host) * memory.host;
}

std::string KeysOfLayout(const Pool& pool, const Layout& layout) { return WriteYaml(WithLayout({}, pool, layout)); }

absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& spec, const std::vector<Pool>& pools, const PlanOptions& options) {
  JobPlan plan;
  std::vector<PreparedPool> prepared;
  absl::Status refusal;
  for (size_t i = 0; i < pools.size(); ++i) {
    absl::StatusOr<PreparedPool> one = PrepareFor(spec, pools[i], i);
    if (one.ok()) {
      prepared.push_back(*std::move(one));
      continue;
    }
    refusal = one.status();
    plan.rejected.push_back(
        {.reason = absl::StrCat("are not possible on ", pools[i].name, ": ", one.status().message()), .count = 1});
  }
  if (prepared.empty()) return refusal;
  plan.work = WorkOf(prepared[0].resolved);
  LayoutSearch(prepared, plan.work, options).Run(/*offload=*/false, &plan);
  if (plan.layouts.empty()) LayoutSearch(prepared, plan.work, options).Run(/*offload=*/true, &plan);
  CombineRejections(plan.rejected);

  std::vector<TreeFacts> facts(pools.size());
  for (const PreparedPool& one : prepared) facts[one.index] = FactsOf(one, plan.work);
  for (PlannedLayout& planned : plan.layouts) {
    planned.reason = ReasonOf(planned, pools[planned.pool], facts[planned.pool], plan.work.global);
  }
  const uint64_t chosen = plan.layouts.empty() ? prepared[0].index : plan.layouts[0].pool;
  for (const PreparedPool& one : prepared) {
    const bool is_nearest = !plan.nearest.empty() && plan.nearest[0].pool == one.index;
    if (plan.layouts.empty() && is_nearest) plan.enough_ranks = EnoughRanks(one, plan.work);
  }
  plan.facts = facts[chosen];
  plan.tree = Decide(plan.facts);
  plan.tree_agrees = !plan.layouts.empty() && Agrees(plan.tree, plan.layouts[0].layout);
  return plan;
}

}  // namespace trainyard::planner
