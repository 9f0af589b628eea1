#include "coordinator/handlers/job_status.h"

#include <algorithm>

#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/checkpoint_facts.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

// The limit of a reason in a list; the complete reason may name every job that holds slots.
constexpr size_t kBriefReasonBytes = 240;

v1::RankStatus MakeRankStatus(const Job& job, const Rank& rank, absl::Time now) {
  v1::RankStatus status;
  status.set_rank(rank.record.rank());
  status.set_host(rank.record.host());
  status.set_generation(job.head().generation());
  status.set_phase(rank.ended() ? PhaseName(Phase::kEnded) : rank.phase.name());
  status.set_last_step(rank.last_step);
  if (rank.last_report > absl::InfinitePast()) {
    status.set_last_report_age_s(absl::ToDoubleSeconds(std::max(now - rank.last_report, absl::ZeroDuration())));
  }
  status.set_pid(rank.record.pid());
  status.set_phase_s(rank.position.phase_s);
  for (const v1::CommunicatorReport& communicator : rank.position.communicators) {
    if (!rank.exited() && !communicator.waits_in().empty()) status.set_waits_in(communicator.waits_in());
  }
  status.set_compute_s(rank.compute_window.StepSeconds());
  status.set_straggler(rank.straggler);
  status.set_wait_share(rank.compute_window.WaitShare());
  for (const v1::MemoryUse& use : rank.memory) *status.add_memory() = use;
  status.set_max_rss_bytes(rank.record.exit().max_rss_bytes());
  status.set_user_s(rank.record.exit().user_s());
  status.set_system_s(rank.record.exit().system_s());
  if (rank.exited()) status.set_exit(DescribeExit(rank.record.exit()));
  if (!rank.exited()) status.set_exit(rank.record.gone());
  return status;
}

// Sets the fields whose current values differ from the recorded head.
void SetCurrent(const Job& job, v1::Job& head) {
  head.set_last_step(std::max(head.last_step(), job.published.step()));
  head.clear_last_loss();
  if (job.published.has_loss()) head.set_last_loss(job.published.loss());
  head.set_unconfirmed(!job.current.unconfirmed.empty());
  head.set_events_dropped(job.record.events_dropped());
  head.set_resource_version(job.version());
  head.set_last_eval_step(job.published.eval_step());
  head.set_current_ranks(static_cast<uint32_t>(job.ranks.size()));
}

}  // namespace

v1::Job MakeHead(const Job& job) {
  v1::Job head = job.head();
  head.clear_checkpoints();
  head.clear_decisions();
  SetCurrent(job, head);
  return head;
}

v1::Job MakeBrief(const Job& job) {
  const v1::Job& recorded = job.head();
  v1::Job brief;
  brief.set_job_id(recorded.job_id());
  brief.mutable_spec()->set_name(recorded.spec().name());
  brief.mutable_spec()->mutable_resources()->set_ranks(recorded.spec().resources().ranks());
  brief.set_state(recorded.state());
  brief.set_reason(CutText(recorded.reason(), kBriefReasonBytes));
  brief.set_generation(recorded.generation());
  brief.set_restarts(recorded.restarts());
  brief.set_planned_restarts(recorded.planned_restarts());
  brief.set_submitted_unix_ms(recorded.submitted_unix_ms());
  brief.set_started_unix_ms(recorded.started_unix_ms());
  brief.set_finished_unix_ms(recorded.finished_unix_ms());
  brief.set_last_step(recorded.last_step());
  brief.set_unreachable(recorded.unreachable());
  brief.set_learned_step_s(recorded.learned_step_s());
  SetCurrent(job, brief);
  return brief;
}

v1::Job MakeJob(const Turn& turn, const Job& job) {
  v1::Job message = MakeHead(job);
  *message.mutable_checkpoints() = job.head().checkpoints();
  for (const v1::CheckpointGrant& grant : job.record.grants()) {
    const uint64_t newest = message.checkpoints().empty() ? 0 : message.checkpoints().rbegin()->step();
    if (grant.refused() || grant.step() <= newest) continue;
    v1::CheckpointInfo& info = *message.add_checkpoints() = MakeInfo(grant);
    info.set_unconfirmed(true);
  }
  *message.mutable_goodput() = MakeGoodput(AccountedTo(job, turn.steady));
  *message.mutable_decisions() = job.head().decisions();
  for (const Rank& rank : job.ranks) *message.add_ranks() = MakeRankStatus(job, rank, turn.now);
  return message;
}

}  // namespace trainyard
