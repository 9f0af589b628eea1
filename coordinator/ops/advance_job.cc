// Moves a job along by what is known of its ranks, and decides what a failure leads to. Called after every event that
// touched the job, so that no op has to know which fact was the last one missing.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

// When peers report a broken collective before the rank that broke it has told why, the cause gets this long to arrive
// before what is left is killed: dying ranks tell within milliseconds.
constexpr absl::Duration kCauseGrace = absl::Milliseconds(300);
// Step reports travel beside the facts; the last ones may arrive after the last exit.
constexpr absl::Duration kReportsGrace = absl::Seconds(1);

bool AllReady(const Job& job) {
  return std::all_of(job.ranks.begin(), job.ranks.end(),
                     [](const Rank& rank) { return rank.record.ready() && !rank.exited(); });
}

bool AllExited(const Job& job) {
  return std::all_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.exited(); });
}

// Every rank made all steps and left with 0.
bool AllDone(const Job& job) {
  uint64_t steps = job.head().spec().train().steps();
  return std::all_of(job.ranks.begin(), job.ranks.end(), [steps](const Rank& rank) {
    const v1::TrainerExited& exit = rank.record.exit();
    return rank.exited() && exit.cause() == v1::TrainerExited::CAUSE_EXIT && exit.code() == kExitDone &&
           rank.record.finished() && !rank.record.stopped() && rank.record.finished_step() >= steps;
  });
}

// Whether rank 0 made steps whose reports have not come yet.
bool ReportsMissing(const Job& job) {
  const v1::RankRecord& first = job.ranks.front().record;
  return first.first_step() <= first.finished_step() && job.told.step() < first.finished_step();
}

RecoveryDecision Decide(const Job& job) {
  RecoveryFacts facts{.failure = &job.record.failure(),
                      .restarts = job.head().restarts(),
                      .max_restarts = job.head().spec().recovery().max_restarts(),
                      .checkpoint_step = std::nullopt,
                      .failures_without_progress = job.failures_without_progress};
  int count = job.head().checkpoints_size();
  if (count > 0) facts.checkpoint_step = job.head().checkpoints(count - 1).step();
  return DecideRecovery(facts);
}

void AdvanceForming(Turn& turn, Job& job) {
  bool started = std::any_of(job.ranks.begin(), job.ranks.end(),
                             [](const Rank& rank) { return rank.record.started(); });
  if (job.state() == v1::JOB_STATE_PLACED && started) {
    turn.Move(job, LifecycleEvent::kTrainerStarted, "trainers run; the group forms");
  }
  if (job.state() != v1::JOB_STATE_STARTING || !AllReady(job)) return;
  job.store.sealed = true;
  EndValueWatchers(turn, job, absl::OkStatus());
  turn.Move(job, LifecycleEvent::kAllReady,
            absl::StrCat("all ", job.ranks.size(), " ranks are ready; first step ",
                         job.ranks.front().record.first_step()));
  turn.PushAll(job);
}

// Returns whether the job is done.
bool AdvanceDone(Turn& turn, Job& job) {
  if (job.ranks.empty() || !AllDone(job)) return false;
  if (ReportsMissing(job)) {
    if (job.reports_until == absl::InfiniteFuture()) job.reports_until = turn.now + kReportsGrace;
    if (turn.now < job.reports_until) return true;
    turn.Notice(job, "warning", absl::StrCat("reports of steps ", job.told.step() + 1, " to ",
                                             job.ranks.front().record.finished_step(), " did not arrive"));
  }
  turn.Move(job, LifecycleEvent::kAllDone,
            absl::StrCat("all ", job.head().spec().train().steps(), " steps are made"));
  return true;
}

// By the cause that is known once all ranks have ended, not by what the first peer to notice said.
void CountFailure(Turn& turn, const Job& job) {
  turn.Emit(FailureCounted{std::string(FailureKindName(job.record.failure().kind()))});
}

void AdvanceStopping(Turn& turn, Job& job) {
  if (!AllExited(job) && !(job.nothing_desired && AllEnded(turn.state, job))) return;
  if (job.record.cancelled()) {
    turn.Move(job, LifecycleEvent::kEndedCancelled, std::string(job.head().reason()));
  } else {
    CountFailure(turn, job);
    turn.Move(job, LifecycleEvent::kEndedFailed, Decide(job).reason);
  }
}

void AdvanceRecovering(Turn& turn, Job& job) {
  if (!job.nothing_desired || !AllEnded(turn.state, job)) return;
  uint64_t index = job.record.submit_index();
  if (turn.state.queue.contains(index)) return;
  CountFailure(turn, job);
  bool progress = job.told.step() > job.step_at_last_failure || job.head().generation() == 1;
  job.failures_without_progress = progress ? 0 : job.failures_without_progress + 1;
  job.step_at_last_failure = job.told.step();
  job.restart_at = turn.now + Decide(job).delay;
  turn.state.queue.insert(index);
  turn.Schedule(job);
}

void TellLastLines(Turn& turn, Job& job, const Rank& rank, const v1::TrainerExited& exit) {
  if (exit.last_lines().empty()) return;
  std::string text = absl::StrCat("last output of rank ", rank.record.rank(), " on ", rank.record.host(), ":");
  for (const std::string& line : exit.last_lines()) absl::StrAppend(&text, "\n  ", line);
  turn.Notice(job, "info", std::move(text));
}

}  // namespace

bool AllEnded(const State& state, Job& job) {
  for (Rank& rank : job.ranks) {
    if (rank.exited() || !rank.gone.empty()) continue;
    auto host = state.hosts.find(rank.host());
    bool reachable = host != state.hosts.end() && host->second.reachable;
    if (reachable) return false;
  }
  for (Rank& rank : job.ranks) {
    if (!rank.exited() && rank.gone.empty()) rank.gone = absl::StrCat("unknown: host ", rank.record.host(),
                                                                      " is unreachable");
  }
  return true;
}

void AdvanceJob(Turn& turn, Job& job) {
  switch (job.state()) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
      AdvanceForming(turn, job);
      break;
    case v1::JOB_STATE_RUNNING:
      AdvanceDone(turn, job);
      break;
    case v1::JOB_STATE_STOPPING:
      if (!AdvanceDone(turn, job)) AdvanceStopping(turn, job);
      break;
    case v1::JOB_STATE_RECOVERING:
      AdvanceRecovering(turn, job);
      break;
    default:
      break;
  }
}

void DropTrainers(Turn& turn, Job& job) {
  job.drop_at = absl::InfiniteFuture();
  if (job.nothing_desired) return;
  job.nothing_desired = true;
  EndValueWatchers(turn, job, absl::AbortedError(absl::StrCat("generation ", job.head().generation(), " of job ",
                                                              job.id.value(), " is over")));
  turn.PushAll(job);
  turn.Touch(job);
}

void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure) {
  if (!HasTrainers(job.state())) return;
  bool own = HasOwnCause(failure.kind());
  bool known = job.record.has_failure();
  if (known && !IsBetterCause(failure, job.record.failure())) {
    // A consequence, or one more of the same: told where it says something new.
    if (own && failure.text() != job.record.failure().text()) turn.Notice(job, "warning", failure.text());
    return;
  }
  *job.record.mutable_failure() = failure;
  turn.Save(job);
  if (job.state() == v1::JOB_STATE_STOPPING && job.record.cancelled()) {
    // It ends anyway, but not at a step any more.
    turn.Notice(job, "warning", failure.text());
    DropTrainers(turn, job);
    return;
  }
  RecoveryDecision decision = Decide(job);
  bool ending = job.state() == v1::JOB_STATE_STOPPING || job.state() == v1::JOB_STATE_RECOVERING;
  if (!ending) {
    turn.Move(job, decision.restart ? LifecycleEvent::kRestart : LifecycleEvent::kGiveUp, decision.reason);
  } else if (job.state() == v1::JOB_STATE_RECOVERING && !decision.restart) {
    turn.Move(job, LifecycleEvent::kGiveUp, decision.reason);
  } else {
    turn.SetReason(job, decision.reason);
    turn.Info(absl::StrCat("job ", job.id.value(), ": ", decision.reason));
  }
  turn.Notice(job, decision.restart ? "warning" : "error", decision.reason);
  if (own) {
    DropTrainers(turn, job);
  } else {
    job.drop_at = turn.now + kCauseGrace;
  }
  turn.Touch(job);
}

void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit) {
  if (rank.exited()) return;
  v1::TrainerExited kept = exit;
  kept.clear_last_lines();  // told below; the record stays small
  kept.set_message(exit.message().substr(0, 1024));
  *rank.record.mutable_exit() = std::move(kept);
  rank.phase = "ended";
  turn.SaveRank(job, rank.record.rank());
  bool stop_asked = job.stop || job.nothing_desired;
  bool stopped_unasked = rank.record.finished() && rank.record.stopped() && !stop_asked;
  uint64_t steps = job.head().spec().train().steps();
  bool finished = rank.record.finished() && (rank.record.stopped() ? stop_asked : rank.record.finished_step() >= steps);
  std::string host = rank.record.host();
  auto failure = JudgeExit({.rank = rank.record.rank(),
                            .host = host,
                            .told_finished = finished,
                            .stopped_unasked = stopped_unasked,
                            .was_desired = !job.nothing_desired,
                            .exit = &rank.record.exit()});
  if (failure.has_value()) {
    FailGeneration(turn, job, *failure);
    if (HasOwnCause(failure->kind())) TellLastLines(turn, job, rank, exit);
  }
  turn.Touch(job);
  turn.ScheduleAll();
}

}  // namespace trainyard
