// Soft reports of ranks: where each stands, and rank 0's steps and evaluations, which watchers get once and in order.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

void TellStep(Turn& turn, Job& job, const v1::StepReport& step) {
  // A restart makes some steps again, with the same numbers; a daemon that re-attached tells some again.
  if (step.step() <= job.told.step()) return;
  job.told.set_step(step.step());
  job.told.set_loss(step.loss());
  job.told_changed = true;
  job.head().set_last_step(step.step());
  job.head().set_last_loss(step.loss());
  job.longest_s = std::max(job.longest_s, step.step_s());
  v1::Event event;
  *event.mutable_step() = step;
  turn.Tell(job, std::move(event));
}

void TellEval(Turn& turn, Job& job, const v1::EvalReport& eval) {
  if (eval.step() <= job.told.eval_step()) return;
  job.told.set_eval_step(eval.step());
  job.told_changed = true;
  job.longest_s = std::max(job.longest_s, eval.seconds());
  v1::Event event;
  *event.mutable_eval() = eval;
  turn.Tell(job, std::move(event));
}

// An evaluation follows the step it was made after.
void TellInOrder(Turn& turn, Job& job, const v1::RankReport& report) {
  int eval = 0;
  for (const v1::StepReport& step : report.steps()) {
    while (eval < report.evals_size() && report.evals(eval).step() < step.step()) {
      TellEval(turn, job, report.evals(eval++));
    }
    TellStep(turn, job, step);
  }
  while (eval < report.evals_size()) TellEval(turn, job, report.evals(eval++));
}

void TakeReport(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report) {
  if (!report.phase().empty() && !rank.exited()) {
    if (rank.phase != report.phase()) job.progress_at = turn.now;
    rank.phase = report.phase().substr(0, 32);
  }
  rank.last_step = std::max(rank.last_step, report.last_step());
  rank.last_report = turn.now - absl::Seconds(std::max(0.0, report.age_s()));
  if (rank.record.rank() != 0) return;
  TellInOrder(turn, job, report);
  if (report.dropped_steps() > 0) {
    turn.Notice(job, "warning", absl::StrCat(report.dropped_steps(), " step reports were dropped by the daemon on ",
                                             rank.record.host(), " while it could not reach the coordinator"));
  }
}

}  // namespace

void Run(Turn& turn, RankReportsTold& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  const HostName& host = session->second;
  for (const v1::RankReport& report : event.reports.reports()) {
    auto it = turn.state.jobs.find(JobId(report.key().job_id()));
    if (it == turn.state.jobs.end()) continue;
    Job& job = it->second;
    bool current = report.key().generation() == job.head().generation() && !IsFinal(job.state()) &&
                   report.key().rank() < job.ranks.size() && job.ranks[report.key().rank()].host() == host;
    if (!current) continue;  // of a generation that is over: no report of it counts
    TakeReport(turn, job, job.ranks[report.key().rank()], report);
    if (job.reports_until != absl::InfiniteFuture()) turn.Touch(job);
  }
}

}  // namespace trainyard
