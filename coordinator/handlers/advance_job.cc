#include "coordinator/handlers/advance_job.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/checkpoint_facts.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/late_reports.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/handlers/preempt_jobs.h"
#include "coordinator/handlers/value_store.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/last_step.h"
#include "coordinator/policy/recovery.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// Called after every fact. The last rank is checked first, because ranks usually become ready in order; otherwise the
// cost would be quadratic.
bool AllReady(const Job& job) {
  // A rank of a command may be done before the last one is started.
  const bool is_command = job.head().spec().has_command();
  const auto ready = [is_command](const Rank& rank) {
    return rank.record.ready() && (!rank.exited() || (is_command && rank.record.finished()));
  };
  return (job.ranks.empty() || ready(job.ranks.back())) && std::all_of(job.ranks.begin(), job.ranks.end(), ready);
}

// Whether every rank made all steps, and exited with 0 or was killed because it did not exit.
bool AllDone(const Job& job) {
  uint64_t steps = job.head().spec().train().steps();
  return std::all_of(job.ranks.begin(), job.ranks.end(), [&](const Rank& rank) {
    const v1::TrainerExited& exit = rank.record.exit();
    bool exited = exit.cause() == v1::TrainerExited::CAUSE_EXIT && exit.code() == kExitDone;
    // Why it was killed is not recorded. Whatever the reason is, nothing is lost once every rank has made all steps.
    bool killed = exit.cause() == v1::TrainerExited::CAUSE_STOPPED || !rank.exited();
    return rank.ended() && (exited || killed) && HasMadeAllSteps(rank.record, steps);
  });
}

// Returns "all 2 ranks are ready", or "the rank is ready".
std::string AllOf(uint64_t count, absl::string_view one, absl::string_view many) {
  return count == 1 ? absl::StrCat("the ", one) : absl::StrCat("all ", count, " ", many);
}

// REQUIRES: the job has a group.
uint64_t LastStepOfJob(const Job& job) {
  return LastStepOf(job.ranks.front().record, job.head().spec().train().steps());
}

// Returns why the job has succeeded.
std::string DoneReason(const Job& job) {
  if (job.head().spec().has_probe()) return "every rank has reported its measurements";
  if (job.head().spec().has_command())
    return AllOf(job.ranks.size(), "rank has exited with 0", "ranks have exited with 0");
  const std::string& ended_early = job.ranks.front().record.ended_early();
  return ended_early.empty() ? AllOf(job.head().spec().train().steps(), "step is made", "steps are made") : ended_early;
}

void AdvanceForming(Turn& turn, Job& job) {
  bool started =
      std::any_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.record.started(); });
  if (job.state() == v1::JOB_STATE_PLACED && started) {
    turn.Move(job, LifecycleEvent::kTrainerStarted, "trainers are running; the group forms");
  }
  if (job.state() != v1::JOB_STATE_STARTING || !AllReady(job)) return;
  job.current.store.sealed = true;
  CloseStore(job);
  job.current.progress_at = turn.now;
  job.current.running_since = turn.now;
  for (const auto& [host, ranks] : job.ranks_on) StopAvoiding(turn, job, host);
  turn.Move(job, LifecycleEvent::kAllReady,
            job.head().spec().has_command()
                ? absl::StrCat("the command runs on ", AllOf(job.ranks.size(), "rank", "ranks"))
                : absl::StrCat(AllOf(job.ranks.size(), "rank is ready", "ranks are ready"), "; first step ",
                               job.ranks.front().record.first_step()));
  turn.PushAll(job);
}

// Warns of a granted checkpoint whose rename no rank confirmed: it is complete, but tools do not find it until a job
// renames it.
void WarnOfUnrenamedCheckpoint(Turn& turn, Job& job) {
  const v1::CheckpointGrant* granted = NewestGranted(job.record.grants());
  if (granted == nullptr || granted->step() < NewestResumeStep(job.head(), job.record.grants()).value_or(0)) return;
  turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kWarning,
              absl::StrCat("the checkpoint of step ", granted->step(), " is complete and was granted its final name, ",
                           granted->path(),
                           ", but no rank confirmed the rename; a job that resumes from the folder "
                           "(--resume) renames it"));
}

// Fails a generation whose ranks have all reported that they made all steps, if no recorded checkpoint holds the last
// step. Facts arrive in order, and rank 0 reports its last save before it reports that it has finished. A missing
// record therefore shows that the save did not succeed. The checkpoint may be complete without its final name; then the
// next group renames it. Otherwise the next group repeats the steps since the newest checkpoint.
void FailUnsaved(Turn& turn, Job& job) {
  if (job.record.has_failure()) return;
  const Rank& first = job.ranks.front();
  const v1::CheckpointGrant* granted = NewestGranted(job.record.grants());
  const bool is_complete = granted != nullptr && granted->step() >= LastStepOfJob(job);
  FailGeneration(turn, job,
                 MakeRankFailure(
                     v1::FailureRecord::KIND_EXIT, first.record.rank(), first.record.host(),
                     is_complete ? "exited before its last checkpoint, which is complete, was renamed to its final name"
                                 : "exited after the last step, and no checkpoint of that step is recorded"));
}

// Returns whether the job is done.
bool AdvanceDone(Turn& turn, Job& job) {
  const v1::FailureRecord::Kind failure = job.record.failure().kind();
  const bool has_failed = failure == v1::FailureRecord::KIND_UNSAVED || failure == v1::FailureRecord::KIND_LIMIT;
  if (job.ranks.empty() || !AllDone(job) || has_failed) return false;
  if (!LastStepIsSaved(job.head(), LastStepOfJob(job), job.record.restored_step())) {
    FailUnsaved(turn, job);
    return false;
  }
  if (ReportsAreMissing(job)) {
    if (job.current.reports_until == absl::InfiniteFuture()) job.current.reports_until = turn.now + kReportsGrace;
    if (turn.now < job.current.reports_until) return true;
    turn.Notice(job, NoticeLevel::kWarning,
                absl::StrCat("reports of steps ", job.reported_step + 1, " to ",
                             job.ranks.front().record.finished_step(), " did not arrive"));
  }
  WarnOfUnrenamedCheckpoint(turn, job);
  turn.Move(job, LifecycleEvent::kAllDone, DoneReason(job));
  return true;
}

// Counts the failure of a generation, once all its ranks have ended, because the first report may come from a peer that
// does not know the cause. A job that was to start again may be paused, so this may be called twice.
void CountFailure(Turn& turn, Job& job) {
  if (std::exchange(job.current.failure_counted, true)) return;
  turn.Emit(FailureCounted{std::string(FailureKindName(job.record.failure().kind()))});
}

// Counts unsaved steps as lost in the ledger, also if the group was ended on purpose. Called when every rank has ended,
// because a save may become complete until then. A checkpoint that was granted is complete.
void EndLedger(Turn& turn, Job& job) {
  const v1::CheckpointGrant* granted = NewestGranted(job.record.grants());
  if (granted != nullptr && granted->generation() == job.head().generation()) {
    CountSavedSteps(turn, job, granted->step());
  }
  AccountGoodput(turn, job);
  v1::GoodputRecord& ledger = *job.record.mutable_goodput();
  // Nothing is known of the progress of a script that reports no steps, so all of its time counts as training.
  const bool reports_steps = !job.head().spec().has_command() || job.published.step() > 0;
  const bool has_lost = job.record.has_failure() || ledger.since_saved_ms() > ledger.since_step_ms();
  if (reports_steps && has_lost) return StepsLost(ledger);
  ledger.set_since_saved_ms(0);
  ledger.set_since_step_ms(0);
}

void AdvanceStopping(Turn& turn, Job& job) {
  if (!AllEnded(job)) return;
  EndLedger(turn, job);
  if (job.record.cancelled() || !ContinuesLater(job.record.ending())) WarnOfUnrenamedCheckpoint(turn, job);
  if (job.record.ending() == v1::JobRecord::ENDING_CANCEL) {
    job.record.set_cancelled(true);
    job.record.set_cancel_reason(job.record.ending_reason());
  }
  if (job.record.cancelled()) {
    turn.Move(job, LifecycleEvent::kEndedCancelled, std::string(job.head().reason()));
    return;
  }
  if (job.record.has_failure()) CountFailure(turn, job);
  v1::JobRecord::Ending ending = job.record.ending();
  if (ending == v1::JobRecord::ENDING_UNSPECIFIED) {
    RecoveryDecision decision = DecideRecovery(FactsForRecovery(turn, job));
    // That the job fails was decided when its group failed. A host that has attached since then does not change that,
    // so only the reason of this decision is used.
    turn.Move(job, LifecycleEvent::kEndedFailed,
              decision.restart ? std::string(job.record.failure().text()) : std::move(decision.reason));
    return;
  }
  std::string reason = job.record.ending_reason();
  job.record.clear_ending();
  job.record.clear_ending_reason();
  job.record.clear_failure();
  if (ending == v1::JobRecord::ENDING_PREEMPT) return EndPreempted(turn, job, std::move(reason));
  turn.Move(job, ending == v1::JobRecord::ENDING_PAUSE ? LifecycleEvent::kEndedPaused : LifecycleEvent::kEndedRestart,
            std::move(reason));
}

void AdvanceRecovering(Turn& turn, Job& job) {
  if (!job.current.nothing_desired || !AllEnded(job)) return;
  uint64_t index = job.record.submit_index();
  if (turn.state.queue.contains(index)) return;
  EndLedger(turn, job);
  CountFailure(turn, job);
  bool progress = job.published.step() > job.step_at_last_failure || job.head().generation() == 1;
  job.failures_without_progress = progress ? 0 : job.failures_without_progress + 1;
  job.step_at_last_failure = job.published.step();
  job.restart_at = turn.now + DecideRecovery(FactsForRecovery(turn, job)).delay;
  const std::string& error = job.record.failure().error();
  job.same_errors = IsSameError(error, job.last_error) ? job.same_errors + 1 : 1;
  job.last_error = error;
  AvoidFailedHost(turn, job);
  turn.Enqueue(job);
  turn.Save(job);
  turn.Schedule(job);
}

}  // namespace

bool AllEnded(const Job& job) {
  const auto ended = [](const Rank& rank) { return rank.ended(); };
  return (job.ranks.empty() || ended(job.ranks.back())) && std::all_of(job.ranks.begin(), job.ranks.end(), ended);
}

bool AllFinished(const Job& job) {
  uint64_t steps = job.head().spec().train().steps();
  return !job.ranks.empty() && std::all_of(job.ranks.begin(), job.ranks.end(),
                                           [steps](const Rank& rank) { return HasMadeAllSteps(rank.record, steps); });
}

RecoveryFacts FactsForRecovery(const Turn& turn, const Job& job) {
  RecoveryFacts facts{.failure = &job.record.failure(),
                      .restarts = job.head().restarts(),
                      .max_restarts = job.head().spec().recovery().max_restarts(),
                      .checkpoint_step = std::nullopt,
                      .failures_without_progress = job.failures_without_progress,
                      .fits_elsewhere = false};
  const v1::FailureRecord::Kind kind = job.record.failure().kind();
  if (kind == v1::FailureRecord::KIND_START || kind == v1::FailureRecord::KIND_CHECK) {
    facts.fits_elsewhere = FitsWithout(turn.now, turn.state, job, {job.record.failure().host()});
  }
  const bool is_same = IsSameError(job.record.failure().error(), job.last_error);
  if (is_same && job.published.step() == 0) facts.same_errors = job.same_errors;
  facts.checkpoint_step = NewestResumeStep(job.head(), job.record.grants());
  if (!facts.checkpoint_step.has_value() && job.record.restored_step() > 0) {
    facts.checkpoint_step = job.record.restored_step();
  }
  return facts;
}

void AdvanceJob(Turn& turn, Job& job) {
  if (job.held_at != 0) return;
  bool ending = job.state() == v1::JOB_STATE_RECOVERING || job.state() == v1::JOB_STATE_STOPPING;
  // The group failed before every host had attached, so the decision was postponed until now.
  if (HasTrainers(job.state()) && !ending && job.record.has_failure() && job.current.unconfirmed.empty()) {
    DecideFailure(turn, job);
    return;
  }
  if (job.current.finished_at == absl::InfiniteFuture() && AllFinished(job)) job.current.finished_at = turn.now;
  switch (job.state()) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
      AdvanceForming(turn, job);
      if (job.state() == v1::JOB_STATE_RUNNING) AdvanceDone(turn, job);
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

}  // namespace trainyard
