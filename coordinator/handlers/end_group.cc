#include "coordinator/handlers/end_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/preempt_jobs.h"
#include "coordinator/handlers/value_store.h"
#include "coordinator/policy/hang.h"
#include "coordinator/policy/last_step.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

// If peers report a broken collective before the failed rank has reported the cause, the cause has this long to arrive
// before the remaining ranks are killed: failing ranks report within milliseconds.
constexpr absl::Duration kCauseGrace = absl::Milliseconds(300);
// The longest error that is recorded and shown in the reason of a job.
constexpr size_t kExitErrorBytes = 512;

DecisionRule RuleOf(v1::FailureRecord::Kind kind, bool restart) {
  if (!restart) return DecisionRule::kGiveUp;
  return kind == v1::FailureRecord::KIND_HANG ? DecisionRule::kHang : DecisionRule::kRestart;
}

bool IsEnding(const Job& job) {
  return job.state() == v1::JOB_STATE_STOPPING || job.state() == v1::JOB_STATE_RECOVERING;
}

void KillAfterCause(Turn& turn, Job& job) {
  if (AwaitsStacks(job)) {
    job.current.drop_at = std::min(job.current.drop_at, turn.now + kStackWait);
  } else if (HasOwnCause(job.record.failure().kind())) {
    DropTrainers(turn, job);
  } else {
    job.current.drop_at = std::min(job.current.drop_at, turn.now + kCauseGrace);
  }
  turn.Touch(job);
}

// Handles the failure of a group that was already being ended on request.
void FailEnding(Turn& turn, Job& job) {
  const v1::FailureRecord& failure = job.record.failure();
  // A job that continues later repeats its unsaved steps.
  const bool will_repeat_steps =
      failure.kind() == v1::FailureRecord::KIND_UNSAVED && ContinuesLater(job.record.ending());
  if (IsPermanent(failure.kind()) && !will_repeat_steps && !job.record.cancelled()) {
    job.record.clear_ending();
    turn.Decide(job, DecisionRule::kGiveUp, NoticeLevel::kError, failure.text());
    turn.SetReason(job, failure.text());
  } else {
    // The group ends anyway, but immediately instead of at a step boundary.
    turn.Notice(job, NoticeLevel::kWarning, absl::StrCat(failure.text(), "; the group was being ended anyway"));
  }
  KillAfterCause(turn, job);
}

void PublishLastLines(Turn& turn, Job& job, const Rank& rank, const v1::TrainerExited& exit) {
  if (exit.last_lines().empty()) return;
  std::string text = absl::StrCat("last output of rank ", rank.record.rank(), " on ", rank.record.host(), ":");
  for (const std::string& line : exit.last_lines()) absl::StrAppend(&text, "\n  ", line);
  turn.Notice(job, NoticeLevel::kWarning, std::move(text));
}

}  // namespace

bool ContinuesLater(v1::JobRecord::Ending ending) {
  return ending == v1::JobRecord::ENDING_PAUSE || ending == v1::JobRecord::ENDING_RESTART ||
         ending == v1::JobRecord::ENDING_PREEMPT;
}

bool IsEndDecided(const Job& job) {
  return job.state() == v1::JOB_STATE_STOPPING && job.record.ending() == v1::JobRecord::ENDING_UNSPECIFIED;
}

bool IsCancelAwaitingSave(const Job& job) {
  return job.state() == v1::JOB_STATE_STOPPING && job.record.ending() == v1::JobRecord::ENDING_CANCEL &&
         !job.current.nothing_desired &&
         std::none_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.record.finished(); });
}

uint64_t NextRequest(const Turn& turn, const Job& job, uint64_t last) {
  if (job.loaded_generation != job.head().generation()) return last + 1;
  return std::max(last + 1, static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixMillis(turn.wall))));
}

absl::Duration StopGrace(const Job& job) { return std::max(limits::kStopGrace, 3 * absl::Seconds(job.longest_s)); }

absl::Duration MaxStopGrace(const Job& job) {
  const absl::Duration max_grace = std::max(kBusyStopGraceMin, StopGrace(job));
  // If the save before the stop fails, the group continues, so the save must end before the group is killed.
  if (job.record.ending() == v1::JobRecord::ENDING_UNSPECIFIED) return max_grace;
  return std::max(max_grace, absl::Seconds(job.head().spec().checkpoint().timeout_s()) + StopGrace(job));
}

void StopAtStep(Turn& turn, Job& job) {
  // The daemons send SIGTERM to a command and give it command.grace_s to end.
  if (job.head().spec().has_command()) return DropTrainers(turn, job);
  job.current.stop = true;
  job.record.set_stop_requests(NextRequest(turn, job, job.record.stop_requests()));
  turn.Save(job);
  job.current.drop_at = turn.now + StopGrace(job);
  job.current.drop_by = turn.now + MaxStopGrace(job);
  turn.PushAll(job);
  turn.Touch(job);
}

void EndGroup(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason, bool now, DecisionRule rule) {
  bool stepping = job.state() == v1::JOB_STATE_RUNNING && !job.record.has_failure();
  job.record.set_ending(ending);
  job.record.set_ending_reason(reason);
  turn.Decide(job, rule, NoticeLevel::kInfo, reason);
  turn.Move(job, LifecycleEvent::kStopRequested, std::move(reason));
  if (stepping && !now) {
    StopAtStep(turn, job);
  } else {
    DropTrainers(turn, job);
    turn.Touch(job);
  }
}

void ChangeEnding(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason) {
  job.record.set_ending(ending);
  job.record.set_ending_reason(reason);
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, reason);
  turn.SetReason(job, std::move(reason));
  turn.Save(job);
}

void UndoStop(Turn& turn, Job& job, const std::string& why) {
  const v1::JobRecord::Ending ending = job.record.ending();
  std::string text =
      ending == v1::JobRecord::ENDING_PREEMPT ? SparePreempted(turn, job, why)
      : ending == v1::JobRecord::ENDING_CANCEL
          ? absl::StrCat("the job was not cancelled: ", why, "; it continues (cancel without --save to end it)")
          : absl::StrCat("the job was not ", ending == v1::JobRecord::ENDING_PAUSE ? "paused" : "restarted", ": ", why,
                         "; training continues (--now ends it without a save)");
  job.current.stop = false;
  job.current.drop_at = job.current.drop_by = absl::InfiniteFuture();
  job.record.clear_ending_reason();
  turn.Decide(job, ending == v1::JobRecord::ENDING_PREEMPT ? DecisionRule::kPreemption : DecisionRule::kOperator,
              NoticeLevel::kError, text);
  turn.Move(job, LifecycleEvent::kStopUndone, std::move(text));
  RestartStallTimer(turn, job);
  turn.PushAll(job);
}

void DropTrainers(Turn& turn, Job& job) {
  job.current.drop_at = absl::InfiniteFuture();
  if (job.current.nothing_desired) return;
  AccountGoodput(turn, job);
  job.current.nothing_desired = true;
  CloseStore(job);
  turn.PushAll(job);
  turn.Touch(job);
}

void MarkGone(Turn& turn, Job& job, Rank& rank, std::string why) {
  if (rank.ended()) return;
  rank.record.set_gone(std::move(why));
  turn.SaveRank(job, rank.record.rank());
  turn.Touch(job);
  turn.ScheduleAll();
}

void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure) {
  if (!HasTrainers(job.state()) || job.held_at != 0) return;
  if (job.record.has_failure() && !IsBetterCause(failure, job.record.failure())) {
    // The new failure follows from the known one or explains no more. It is published only if it has a cause of its own
    // and another text.
    bool own = HasOwnCause(failure.kind());
    if (own && failure.text() != job.record.failure().text()) turn.Notice(job, NoticeLevel::kWarning, failure.text());
    return;
  }
  *job.record.mutable_failure() = failure;
  turn.Save(job);
  // A cancellation with a save is undone if the save was not made before the failure.
  if (IsCancelAwaitingSave(job)) UndoStop(turn, job, failure.text());
  bool end_requested = job.record.cancelled() || job.record.ending() != v1::JobRecord::ENDING_UNSPECIFIED;
  if (job.state() == v1::JOB_STATE_STOPPING && end_requested) return FailEnding(turn, job);
  if (!IsEnding(job) && !job.current.unconfirmed.empty()) {
    turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kWarning,
                absl::StrCat(failure.text(), "; what follows is decided once every host has attached or is lost"));
    return;
  }
  DecideFailure(turn, job);
}

void DecideFailure(Turn& turn, Job& job) {
  const v1::FailureRecord failure = job.record.failure();
  RecoveryDecision decision = DecideRecovery(FactsForRecovery(turn, job));
  if (!IsEnding(job)) {
    turn.Move(job, decision.restart ? LifecycleEvent::kRestart : LifecycleEvent::kGiveUp, decision.reason);
  } else if (job.state() == v1::JOB_STATE_RECOVERING && !decision.restart) {
    turn.Move(job, LifecycleEvent::kGiveUp, decision.reason);
  } else {
    turn.SetReason(job, decision.reason);
  }
  turn.Decide(job, RuleOf(failure.kind(), decision.restart),
              decision.restart ? NoticeLevel::kWarning : NoticeLevel::kError, decision.reason);
  KillAfterCause(turn, job);
}

void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit) {
  if (rank.exited()) return;
  v1::TrainerExited kept = exit;
  kept.clear_last_lines();  // published below, so that the record stays small
  const bool is_command = job.head().spec().has_command();
  // A trainer that cannot run on its host has printed why, and reports nothing else.
  const bool cannot_run = !is_command && exit.cause() == v1::TrainerExited::CAUSE_EXIT && exit.code() == kExitCannotRun;
  kept.set_message(CutText(cannot_run ? ErrorOf(exit) : exit.message(), 1024));
  *rank.record.mutable_exit() = std::move(kept);
  rank.record.clear_gone();
  rank.phase = Phase::kEnded;
  const bool exited_with_0 = exit.cause() == v1::TrainerExited::CAUSE_EXIT && exit.code() == kExitDone;
  // If a daemon has ended a command, it reports the command as stopped, whatever the exit code is. After a restart, the
  // new daemon learns from a file that the command was ended, unless the file could not be written or the old daemon
  // had sent no signal yet. `was_removed` covers these cases: the exit code of a command that was to be ended does not
  // show that its work is done.
  if (is_command && exited_with_0 && !rank.was_removed) rank.record.set_finished(true);
  turn.SaveRank(job, rank.record.rank());
  bool stop_requested = job.current.stop || job.current.nothing_desired;
  bool stopped_unrequested = rank.record.finished() && rank.record.stopped() && !stop_requested;
  uint64_t steps = job.head().spec().train().steps();
  bool finished =
      rank.record.finished() && rank.record.stopped() ? stop_requested : HasMadeAllSteps(rank.record, steps);
  // A rank that remains after every rank has made all steps is killed. A coordinator that restarts meanwhile does not
  // know that, because `nothing_desired` is soft.
  const bool killed_at_end = exit.cause() == v1::TrainerExited::CAUSE_STOPPED && AllFinished(job);
  std::string host = rank.record.host();
  auto failure = ClassifyExit({.rank = rank.record.rank(),
                               .host = host,
                               .reported_finished = finished,
                               .stopped_unrequested = stopped_unrequested,
                               .was_desired = !job.current.nothing_desired && !killed_at_end,
                               .is_command = is_command,
                               .exit = &rank.record.exit()});
  if (failure.has_value()) {
    // A command does not report all its steps, so its errors are not compared.
    if (failure->kind() == v1::FailureRecord::KIND_EXIT && !is_command) {
      failure->set_error(CutText(ErrorOf(exit), kExitErrorBytes));
    }
    FailGeneration(turn, job, *failure);
    // Publishes only the output of the rank that is the cause; the output of its peers would not help.
    bool is_cause = job.record.failure().text() == failure->text();
    if (is_cause && HasOwnCause(failure->kind())) PublishLastLines(turn, job, rank, exit);
  }
  turn.Touch(job);
  turn.ScheduleAll();
}

}  // namespace trainyard
