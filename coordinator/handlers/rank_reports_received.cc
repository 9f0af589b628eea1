// RankReportsReceived: reports of ranks, which may be lost or repeated. Records the progress of each rank, and
// publishes the steps and evaluations of rank 0 once and in order.
#include <algorithm>
#include <utility>

#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/abandon_job.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/dropped_reports.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/late_reports.h"
#include "coordinator/handlers/rank_progress.h"
#include "coordinator/handlers/script_reports.h"
#include "coordinator/policy/goodput.h"

namespace trainyard {
namespace {

constexpr int kMemoryKinds = 8;
constexpr size_t kReportedNameBytes = 32;  // of a phase, or of a kind of memory
constexpr size_t kStepMarks = 256;
static_assert(kStepMarks % 2 == 0, "MarkStep removes marks when there is one more, an odd number");

// The last step that the job can make. A script may make any number of steps.
uint64_t StepsMax(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  return spec.has_command() ? kScriptStepsMax : spec.train().steps();
}

// A restart makes some steps again under the same numbers, and a daemon that attached again sends some reports again.
// Reports that an earlier coordinator published are added to the history, but are not published as new: watchers
// already have them.
void PublishStep(Turn& turn, Job& job, const v1::StepReport& step) {
  // A repeated step is ignored, and so is a number that the job cannot reach, because it would hide every later step.
  if (step.step() <= job.reported_step || step.step() > StepsMax(job)) return;
  job.reported_step = step.step();
  job.longest_s = std::max(job.longest_s, step.step_s());
  bool is_new = step.step() > job.published.step();
  if (is_new) {
    job.published.set_step(step.step());
    job.head().set_last_step(step.step());
    if (step.has_loss()) {
      job.published.set_loss(step.loss());
      job.head().set_last_loss(step.loss());
    } else {
      job.published.clear_loss();
      job.head().clear_last_loss();
    }
    job.published_changed = true;
  }
  v1::Event event;
  *event.mutable_step() = step;
  turn.PublishReport(job, std::move(event), is_new);
}

void PublishEval(Turn& turn, Job& job, const v1::EvalReport& eval) {
  if (eval.step() <= job.reported_eval || eval.step() > StepsMax(job)) return;
  job.reported_eval = eval.step();
  job.longest_s = std::max(job.longest_s, eval.seconds());
  bool is_new = eval.step() > job.published.eval_step();
  if (is_new) {
    job.published.set_eval_step(eval.step());
    job.published_changed = true;
  }
  v1::Event event;
  *event.mutable_eval() = eval;
  turn.PublishReport(job, std::move(event), is_new);
}

// Publishes each evaluation after the step that it followed.
void PublishInOrder(Turn& turn, Job& job, const v1::RankReport& report) {
  int eval = 0;
  for (const v1::StepReport& step : report.steps()) {
    while (eval < report.evals_size() && report.evals(eval).step() < step.step()) {
      PublishEval(turn, job, report.evals(eval++));
    }
    PublishStep(turn, job, step);
  }
  while (eval < report.evals_size()) PublishEval(turn, job, report.evals(eval++));
}

void RecordMemory(Rank& rank, const v1::RankReport& report) {
  if (report.memory_size() == 0) return;
  rank.memory.clear();
  for (int i = 0; i < report.memory_size() && i < kMemoryKinds; ++i) {
    rank.memory.push_back(report.memory(i));
    rank.memory.back().set_kind(CutText(report.memory(i).kind(), kReportedNameBytes));
  }
}

// Returns when the newest step that a rank reports was completed: its current phase began then, `phase_s` ago.
absl::Time StepCompletedAt(absl::Time now, const Rank& rank, const v1::RankReport& report) {
  double ago = std::clamp(report.age_s(), 0.0, 1e6) + std::clamp(report.phase_s(), 0.0, 1e6);
  return std::max(rank.step_at, now - absl::Seconds(ago));
}

// Stores a mark of the step, because its checkpoint may be reported much later. If there are too many marks, removes
// every second one; the oldest and the newest stay, because the number of marks is odd then.
void MarkStep(Job& job, uint64_t step) {
  const v1::GoodputRecord& ledger = job.record.goodput();
  job.current.step_marks.push_back({.step = step, .train_ms = ledger.train_ms() - ledger.since_step_ms()});
  if (job.current.step_marks.size() <= kStepMarks) return;
  bool is_removed = true;
  std::erase_if(job.current.step_marks, [&is_removed](const StepMark&) { return is_removed = !is_removed; });
}

// Called when rank 0 has reported a new step. The step may have been completed before a failure that was reported
// earlier, even long before: a daemon sends its stored reports again to a coordinator that has restarted.
void CountStep(const Turn& turn, Job& job, const Rank& rank) {
  const absl::Duration since = turn.now - rank.step_at;
  StepCompleted(*job.record.mutable_goodput(),
                static_cast<uint64_t>(absl::ToInt64Milliseconds(since)) * job.world_size());
  MarkStep(job, rank.last_step);
  job.published.set_step_unix_ms(absl::ToUnixMillis(turn.steady - since));
  job.published_changed = true;
}

void ApplyReport(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report) {
  if (rank.record.rank() == 0) AccountGoodput(turn, job);  // a save may begin or end here
  if (!report.phase().empty() && !rank.exited()) {
    if (rank.phase.name() != report.phase()) job.current.progress_at = turn.now;
    rank.phase = ReportedPhase(CutText(report.phase(), kReportedNameBytes));
  }
  if (report.last_step() > rank.last_step) {
    rank.last_step = report.last_step();
    rank.step_at = StepCompletedAt(turn.now, rank, report);
    if (rank.record.rank() == 0) CountStep(turn, job, rank);
  }
  RecordPosition(turn, job, rank, report);
  RecordMemory(rank, report);
  rank.last_report = turn.now - absl::Seconds(std::max(0.0, report.age_s()));
  if (rank.record.rank() != 0) return;
  PublishInOrder(turn, job, report);
  RecordScriptReport(turn, job, report);  // after the step that a checkpoint contains
  if (rank.exited() || rank.record.finished()) turn.StoreReports(job);
  if (report.dropped_steps() > 0) RecordDroppedReports(turn, job, rank, report.dropped_steps());
}

}  // namespace

void Run(Turn& turn, RankReportsReceived& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  const HostName& host = session->second;
  if (!event.reports.paths().empty()) RecordPathAnswers(turn, host, event.reports);
  for (const v1::RankReport& report : event.reports.reports()) {
    auto it = turn.state.jobs.find(JobId(report.key().job_id()));
    if (it == turn.state.jobs.end()) continue;
    Job& job = it->second;
    bool is_current = report.key().generation() == job.head().generation() && !IsFinal(job.state()) &&
                      report.key().rank() < job.ranks.size() && job.ranks[report.key().rank()].host() == host;
    if (!is_current) continue;  // a report of an earlier generation or of another host does not count
    ApplyReport(turn, job, job.ranks[report.key().rank()], report);
    ReleaseDelayedAck(turn, turn.state.hosts.at(host), job);
    if (job.current.reports_until != absl::InfiniteFuture()) turn.Touch(job);
  }
}

}  // namespace trainyard
