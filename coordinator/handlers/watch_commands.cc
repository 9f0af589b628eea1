#include "coordinator/handlers/watch_commands.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/job_time.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/policy/elastic.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

// Whether a job that already runs must get no more slots, because another job waits for them or is about to be placed.
bool OthersWait(const Turn& turn, const Job& job) {
  const bool changes = std::any_of(turn.state.active.begin(), turn.state.active.end(), [&](const JobId& id) {
    return id != job.id && turn.state.jobs.at(id).state() != v1::JOB_STATE_RUNNING;
  });
  return changes || AnyWaitingJobCouldFit(turn);
}

}  // namespace

void LimitTime(Turn& turn, Job& job) {
  const double limit_s = job.head().spec().command().time_limit_s();
  const bool runs = job.forming() || job.state() == v1::JOB_STATE_RUNNING || job.state() == v1::JOB_STATE_RECOVERING;
  const bool gives_up = job.record.has_failure() && IsPermanent(job.record.failure().kind());
  if (limit_s == 0 || !runs || gives_up || UsedTime(turn, job) < absl::Seconds(limit_s)) return;
  FailGeneration(turn, job,
                 MakeFailure(v1::FailureRecord::KIND_LIMIT,
                             absl::StrCat("the time limit of ", limit_s, " s is used up (command.time_limit_s)")));
}

void GrowCommand(Turn& turn, Job& job) {
  const uint32_t ranks = static_cast<uint32_t>(job.ranks.size());
  const bool may_change = job.state() == v1::JOB_STATE_RUNNING && !job.record.has_failure() && job.held_at == 0 &&
                          !job.current.nothing_desired && job.current.unconfirmed.empty();
  if (!job.head().spec().command().has_min_ranks() || !may_change || ranks == job.world_size()) return;
  // A program that has ended on one rank is about to end on all, so it is not restarted with more ranks.
  if (std::any_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.ended(); })) return;
  GrowthFacts facts{.ranks = ranks, .possible = RanksIfStartedAgain(turn, job)};
  absl::Time& fit_since = job.current.more_fit_since;
  fit_since = facts.possible > ranks ? std::min(fit_since, turn.now) : absl::InfiniteFuture();
  if (facts.possible <= ranks) return;
  facts.fit_for = turn.now - fit_since;
  facts.running_for = turn.now - job.current.running_since;
  facts.patience = absl::Seconds(job.head().spec().command().grow_after_s());
  facts.others_wait = OthersWait(turn, job);
  GrowthDecision decision = DecideGrowth(facts);
  if (!decision.grow) return;
  EndGroup(turn, job, v1::JobRecord::ENDING_RESTART, std::move(decision.reason), /*now=*/true,
           DecisionRule::kPlacement);
}

}  // namespace trainyard
