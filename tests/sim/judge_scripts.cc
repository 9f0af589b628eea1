// What must hold for scripts: elastic jobs with `command`.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/policy/lifecycle.h"
#include "tests/sim/judge.h"

namespace trainyard::sim {
namespace {

// The reason that policy/elastic gives for a growth begins with this text.
constexpr char kGrows[] = "grows from ";

}  // namespace

void Judge::ScriptStarted(int64_t pid, uint32_t world_size) {
  TrainerTruth& truth = processes_.at(pid);
  truth.ready = true;  // the coordinator regards a process of a command as ready when it runs
  const GroupId group = agent::GroupOf(truth.id);
  CheckSize(truth.id.job, world_size, absl::StrCat(agent::Describe(truth.id), " is started as one of "));
  const auto [known, is_new] = world_sizes_.try_emplace(group, world_size);
  if (known->second != world_size || truth.id.rank >= world_size) {
    ReportViolation(invariant::kElasticSize,
                    absl::StrCat(agent::Describe(truth.id), " is started as one of ", world_size,
                                 " ranks, and another one as one of ", known->second));
  }
  const uint32_t on_host = ++ranks_on_host_[{group, truth.host}];
  const uint32_t per_host = scripts_.at(truth.id.job).ranks_per_host;
  if (per_host > 0 && on_host > per_host) {
    ReportViolation(invariant::kElasticSize, absl::StrCat(agent::Describe(truth.id), " is number ", on_host, " on ",
                                                          truth.host, ", where ", per_host, " may run"));
  }
}

void Judge::CheckSize(const JobId& job, size_t ranks, absl::string_view what) {
  const JobPlan& plan = scripts_.at(job);
  if (ranks >= plan.min_ranks && ranks <= plan.ranks && ranks % std::max(1u, plan.ranks_per_host) == 0) return;
  ReportViolation(invariant::kElasticSize, absl::StrCat(what, ranks, " ranks, with ", plan.min_ranks, " to ",
                                                        plan.ranks, " allowed, ", plan.ranks_per_host, " on a host"));
}

void Judge::CheckScript(const Job& job) {
  if (!job.ranks.empty() && !IsFinal(job.state())) {
    CheckSize(job.id, job.ranks.size(), absl::StrCat(NameOf(job), " has "));
  }
  const auto growth = growths_.find(job.id);
  if (growth == growths_.end() || job.head().generation() <= growth->second.first) return;
  const auto [generation, restarts] = growth->second;
  growths_.erase(growth);
  // If the simulation has disturbed the generation or the job, a rank may have failed while the group was being ended,
  // which is counted as a restart.
  if (harmed_.contains({job.id, Generation(generation)}) || harmed_jobs_.contains(job.id)) return;
  if (job.head().restarts() == restarts) return;
  ReportViolation(invariant::kGrowth,
                  absl::StrCat(NameOf(job), " has grown, which was counted as a restart: ", job.head().restarts()));
}

// Called when the coordinator ends a generation that ran for `ran`. Growth is a valid reason only after grow_after.
void Judge::CheckScriptEnd(const Job& job, v1::JobState before, absl::Duration ran) {
  constexpr absl::Duration kClockError = absl::Milliseconds(300);
  if (before != v1::JOB_STATE_RUNNING || !absl::StartsWith(job.head().reason(), kGrows)) return;
  growths_[job.id] = {job.head().generation(), job.head().restarts()};
  if (ran < scripts_.at(job.id).grow_after - kClockError) {
    ReportViolation(invariant::kGrowth, absl::StrCat(NameOf(job), " ", job.head().reason(), ", after it ran for ",
                                                     absl::FormatDuration(ran)));
  }
}

}  // namespace trainyard::sim
