// HostFactsReceived: a batch of facts about trainers. Each fact counts once, by its sequence number; one of an old
// generation changes nothing and is logged. All facts are acknowledged once they are durable, so that the daemon can
// delete them.
#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/checkpoint_facts.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/host_health.h"
#include "coordinator/handlers/late_reports.h"
#include "coordinator/handlers/strays.h"
#include "coordinator/handlers/trainer_facts.h"

namespace trainyard {
namespace {

absl::string_view FactName(const v1::Fact& fact) {
  const auto* field = v1::Fact::descriptor()->FindFieldByNumber(static_cast<int>(fact.kind_case()));
  return field == nullptr ? absl::string_view("unknown") : absl::string_view(field->name());
}

// Whether facts of this kind come from trainers alone. The daemon reports the other kinds, also for scripts.
bool IsTrainersOwn(const v1::Fact& fact) {
  switch (fact.kind_case()) {
    case v1::Fact::kStarted:
    case v1::Fact::kExited:
    case v1::Fact::kExamined:
    case v1::Fact::kDecided:
      return false;
    default:
      return true;
  }
}

// Trainers of held or unknown jobs are left alone until they have exited; then they are removed from Host::held or
// Host::unknown. Returns whether the fact is about such a trainer.
bool ApplyToHeld(Turn& turn, Host& host, const v1::Fact& fact) {
  const auto has_key = [&](const v1::TrainerKey& key) { return SameTrainer(key, fact.key()); };
  const auto runs_key = [&](const v1::RunningTrainer& running) { return SameTrainer(running.key(), fact.key()); };
  if (!fact.has_exited()) {
    return std::any_of(host.unknown.begin(), host.unknown.end(), has_key) ||
           std::any_of(host.held.begin(), host.held.end(), runs_key);
  }
  const bool unknown = std::erase_if(host.unknown, has_key) > 0;
  const bool held = std::erase_if(host.held, runs_key) > 0;
  if (!unknown && !held) return false;
  turn.Push(host.name);
  turn.ScheduleAll();
  if (unknown) ForgetEndedUnknown(turn);
  if (held) ResumeHeld(turn, turn.state.jobs.at(JobId(fact.key().job_id())));
  return true;
}

// Returns OK, or why the fact must change nothing.
absl::Status CheckIsCurrent(const State& state, const Host& host, const v1::Fact& fact) {
  const v1::TrainerKey& key = fact.key();
  auto it = state.jobs.find(JobId(key.job_id()));
  if (it == state.jobs.end()) return absl::NotFoundError("no such job");
  const Job& job = it->second;
  if (key.generation() != job.head().generation()) {
    return absl::AbortedError(absl::StrCat("the job is at generation ", job.head().generation()));
  }
  if (IsFinal(job.state())) return absl::AbortedError(absl::StrCat("the job is ", StateName(job.state())));
  // A host that was forgotten does not own the ranks that it ran before.
  if (key.rank() >= job.ranks.size() || job.ranks[key.rank()].host() != host.name || !host.jobs.contains(job.id)) {
    return absl::AbortedError("that rank is not on this host");
  }
  return absl::OkStatus();
}

void ApplyFact(Turn& turn, Host& host, const v1::Fact& fact) {
  // Facts of a generation or job that the store does not know are not recorded. No checkpoint is lost by that, because
  // checkpoints are in the run folder.
  if (ApplyToHeld(turn, host, fact)) return;
  ForgetStray(turn, host, fact);
  if (absl::Status status = CheckIsCurrent(turn.state, host, fact); !status.ok()) {
    turn.Info(absl::StrCat("fact '", FactName(fact), "' of rank ", fact.key().rank(), ", generation ",
                           fact.key().generation(), ", job ", fact.key().job_id(), " from ", host.name.value(),
                           " is refused: ", std::string(status.message())));
    return;
  }
  Job& job = turn.state.jobs.at(JobId(fact.key().job_id()));
  Rank& rank = job.ranks[fact.key().rank()];
  if (job.head().spec().has_command() && IsTrainersOwn(fact)) {
    // A script reports steps and checkpoints by other calls (script_reports.h). Only its exit decides how it has ended.
    turn.Warn(absl::StrCat("a fact of the script of job ", job.id.value(), " from rank ", fact.key().rank(),
                           " is ignored: a script cannot report this"));
    return;
  }
  switch (fact.kind_case()) {
    case v1::Fact::kSaveReady:
    case v1::Fact::kSaved:
    case v1::Fact::kSaveFailed:
    case v1::Fact::kRestored:
      ApplyCheckpointFact(turn, job, rank, fact);
      break;
    default:
      ApplyTrainerFact(turn, job, rank, fact);
  }
  if (fact.key().rank() == 0 && (fact.has_finished() || fact.has_exited())) StoreLastReports(turn, host, job, fact);
  turn.Touch(job);
}

}  // namespace

void Run(Turn& turn, HostFactsReceived& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;  // an old stream: the daemon sends the facts again on its new one
  Host& host = turn.state.hosts.at(session->second);
  // The next tick does not count this message if the stream has ended by then.
  RecordContact(turn, host, turn.now);
  for (const v1::Fact& fact : event.batch.facts()) {
    if (fact.sequence() <= host.applied_fact) continue;
    host.applied_fact = fact.sequence();
    ApplyFact(turn, host, fact);
  }
  Acknowledge(turn, host);
}

}  // namespace trainyard
