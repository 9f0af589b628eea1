#include "coordinator/handlers/trainer_facts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/checkpoint_facts.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/host_decisions.h"
#include "coordinator/policy/recovery.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// A later generation that is farther above the known one is not plausible.
constexpr uint64_t kGenerationsSkippedMax = 1'000'000;

v1::FailureRecord FailureOf(const Rank& rank, v1::FailureRecord::Kind kind, absl::string_view what) {
  return MakeRankFailure(kind, rank.record.rank(), rank.record.host(), what);
}

void Started(Turn& turn, Job& job, Rank& rank, const v1::TrainerStarted& started) {
  // The rank's host was given up and the job has no group any more: a trainer that starts late is a stray of that host.
  if (!HasTrainers(job.state())) return;
  rank.record.set_started(true);
  rank.record.set_pid(started.pid());
  rank.seen_running = true;
  rank.record.clear_gone();
  MarkCommandReady(job, rank);
  job.current.progress_at = turn.now;
}

void Registered(Turn& turn, Job& job, Rank& rank, const v1::TrainerRegistered& registered) {
  if (rank.record.registered()) return;
  rank.record.set_started(true);
  rank.phase = Phase::kJoining;
  job.current.progress_at = turn.now;
  if (registered.spec_digest() == job.head().spec_digest()) {
    rank.record.set_registered(true);
    return;
  }
  FailGeneration(turn, job,
                 FailureOf(rank, v1::FailureRecord::KIND_DIGEST,
                           absl::StrCat("has a configuration that differs from the job's: digest ",
                                        registered.spec_digest(), ", expected ", job.head().spec_digest())));
}

void Ready(Turn& turn, Job& job, Rank& rank, const v1::TrainerReady& ready) {
  // A rank that is not registered has not proved that its configuration is the job's; its daemon reports `registered`
  // first.
  if (!rank.record.registered() || rank.record.ready()) return;
  rank.record.set_ready(true);
  rank.record.set_first_step(ready.first_step());
  rank.phase = Phase::kReady;
  if (rank.record.rank() == 0) ResolveGrantsWithoutRestore(turn, job);
  job.current.progress_at = turn.now;
}

void Broken(Turn& turn, Job& job, Rank& rank, const v1::CollectiveBroken& broken) {
  rank.reported_broken = true;
  FailGeneration(turn, job,
                 FailureOf(rank, v1::FailureRecord::KIND_COLLECTIVE,
                           absl::StrCat("reports a broken collective at step ", broken.step(), ": ",
                                        CutText(broken.message(), 1024))));
}

// The run folder belongs to a later generation that has ended. The next generation gets a number above it
// (BeginGeneration). A group that has formed has claimed the folder, so what fences it is another coordinator's group.
void Fenced(Turn& turn, Job& job, const Rank& rank, const v1::TrainerRefused& refused) {
  const uint64_t known = job.head().generation(), later = refused.later_generation();
  const bool is_old_store = job.forming() && later > known && later - known <= kGenerationsSkippedMax;
  if (is_old_store) {
    job.record.set_past_generation(std::max<uint64_t>(job.record.past_generation(), later));
    turn.Save(job);
  }
  FailGeneration(
      turn, job,
      FailureOf(rank, is_old_store ? v1::FailureRecord::KIND_FENCED : v1::FailureRecord::KIND_ABORTED,
                absl::StrCat("found the run folder of a later generation: ", CutText(refused.message(), 4096),
                             is_old_store ? "; the store was restored from an older copy" : "")));
}

void Refused(Turn& turn, Job& job, const Rank& rank, const v1::TrainerRefused& refused) {
  if (refused.later_generation() > 0) return Fenced(turn, job, rank, refused);
  std::string message = CutText(refused.message(), 4096);
  // If this host lacks the checkpoint, a host that cannot be reached now may have it, so this is no permanent failure
  // of the job.
  FailGeneration(
      turn, job,
      refused.checkpoint_missing()
          ? FailureOf(rank, v1::FailureRecord::KIND_CHECKPOINT, absl::StrCat("cannot resume there: ", message))
          : FailureOf(rank, v1::FailureRecord::KIND_REFUSED, absl::StrCat("refused the job: ", message)));
}

// Called when a rank has carried out a stop after it was undone, by EndGrace in tick.cc or by an earlier coordinator.
// The rest of the group is stopped, too, and the job starts again; nothing has failed.
void RestartAfterLateStop(Turn& turn, Job& job) {
  job.current.stop_overdue = false;
  if (job.state() != v1::JOB_STATE_RUNNING || job.record.has_failure()) return;
  EndGroup(turn, job, v1::JobRecord::ENDING_RESTART,
           "the ranks stopped, although the request to stop had been undone; the job starts again", /*now=*/false);
}

// Records that the rank has made all steps, ended the job early or stopped on request. If the last step could not be
// saved, the job has not succeeded.
void Finished(Turn& turn, Job& job, Rank& rank, const v1::TrainerFinished& finished) {
  rank.record.set_finished(true);
  rank.record.set_stopped(finished.stopped());
  rank.record.set_finished_step(finished.step());
  if (!finished.stopped()) rank.record.set_ended_early(CutText(finished.ended_early(), 1024));
  rank.last_step = std::max(rank.last_step, finished.step());
  if (finished.stopped() && job.current.stop_overdue) RestartAfterLateStop(turn, job);
  if (finished.unsaved().empty()) return;
  const std::optional<uint64_t> kept = NewestResumeStep(job.head(), job.record.grants());
  FailGeneration(turn, job,
                 FailureOf(rank, v1::FailureRecord::KIND_UNSAVED,
                           absl::StrCat("could not save step ", finished.step(),
                                        ", the last one: ", CutText(finished.unsaved(), 1024), "; ",
                                        kept.has_value() ? absl::StrCat("the newest checkpoint is of step ", *kept)
                                                         : std::string("there is no checkpoint"))));
}

// Publishes the measurements of a rank once; the doctor evaluates them.
void Probed(Turn& turn, Job& job, const Rank& rank, const v1::ProbeReport& report) {
  const bool published =
      std::any_of(job.history.durable().begin(), job.history.durable().end(), [&](const EventPtr& event) {
        return event->has_probe() && event->generation() == job.head().generation() &&
               event->probe().rank() == rank.record.rank();
      });
  if (published) return;
  v1::Event event;
  *event.mutable_probe() = report;
  event.mutable_probe()->set_rank(rank.record.rank());
  event.mutable_probe()->set_host(rank.record.host());
  turn.Publish(job, std::move(event));
}

}  // namespace

void MarkCommandReady(const Job& job, Rank& rank) {
  if (!job.head().spec().has_command()) return;
  rank.record.set_registered(true);
  rank.record.set_ready(true);
  rank.phase = Phase::kTrain;
}

void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact) {
  if (rank.exited()) return;  // nothing counts after its exit
  switch (fact.kind_case()) {
    case v1::Fact::kStarted:
      Started(turn, job, rank, fact.started());
      break;
    case v1::Fact::kRegistered:
      Registered(turn, job, rank, fact.registered());
      break;
    case v1::Fact::kReady:
      Ready(turn, job, rank, fact.ready());
      break;
    case v1::Fact::kFinished:
      Finished(turn, job, rank, fact.finished());
      break;
    case v1::Fact::kRefused:
      Refused(turn, job, rank, fact.refused());
      break;
    case v1::Fact::kBroken:
      Broken(turn, job, rank, fact.broken());
      break;
    case v1::Fact::kExamined:
      RecordExamination(turn, job, rank, fact.examined());
      return;
    case v1::Fact::kDecided:
      RecordHostDecisions(turn, job, rank.host(), fact.decided());
      return;
    case v1::Fact::kProbe:
      Probed(turn, job, rank, fact.probe());
      return;
    case v1::Fact::kExited:
      RankExited(turn, job, rank, fact.exited());
      break;
    default:
      turn.Warn(absl::StrCat("a fact of an unknown kind from ", rank.record.host(),
                             " is ignored; its daemon may be newer than the coordinator"));
      return;
  }
  turn.SaveRank(job, rank.record.rank());
}

}  // namespace trainyard
