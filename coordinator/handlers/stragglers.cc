#include "coordinator/handlers/stragglers.h"

#include <utility>
#include <vector>

#include "coordinator/core/turn.h"
#include "coordinator/policy/straggler.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

constexpr absl::Duration kStragglerInterval = absl::Seconds(1);

}  // namespace

void CheckStragglers(Turn& turn, Job& job) {
  if (job.state() != v1::JOB_STATE_RUNNING || job.ranks.size() < 2) return;
  if (turn.now - job.stragglers_checked_at < kStragglerInterval) return;
  job.stragglers_checked_at = turn.now;
  std::vector<StragglerFacts> facts;
  facts.reserve(job.ranks.size());
  const JobLayout layout = LayoutOf(job.head().spec());
  for (const Rank& rank : job.ranks) {
    facts.push_back({.rank = rank.record.rank(),
                     .host = rank.record.host(),
                     .stage = layout.StageOf(rank.record.rank()),
                     .micro_batch_s = rank.compute_window.MicroBatchSeconds(),
                     .slow_since = rank.slow_since,
                     .is_straggler = rank.straggler});
  }
  std::vector<StragglerChange> changes = FindStragglers(turn.now, facts);
  for (size_t i = 0; i < facts.size(); ++i) {
    job.ranks[i].slow_since = facts[i].slow_since;
    job.ranks[i].straggler = facts[i].is_straggler;
  }
  for (StragglerChange& change : changes) {
    turn.Decide(job, DecisionRule::kStraggler, change.is_straggler ? NoticeLevel::kWarning : NoticeLevel::kInfo,
                std::move(change.text));
  }
}

}  // namespace trainyard
