// A batch of facts: each counts once, by its sequence; what belongs to an old generation is refused by name; all of it
// is acknowledged, durably, so that the daemon may forget it.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

// Reports travel beside the facts, some 50 ms behind.
constexpr absl::Duration kReportsGrace = absl::Seconds(1);
// A rank 0 that has finished and waits for the word that this is known tells its newest steps again once its link is
// open again: a daemon that died had them in memory alone, and its successor tells the fact, which was on disk, at
// once.
constexpr absl::Duration kReportsPatience = absl::Seconds(30);

absl::string_view FactName(const v1::Fact& fact) {
  const auto* field = v1::Fact::descriptor()->FindFieldByNumber(static_cast<int>(fact.kind_case()));
  return field == nullptr ? absl::string_view("unknown") : absl::string_view(field->name());
}

bool SameTrainer(const v1::TrainerKey& a, const v1::TrainerKey& b) {
  return a.job_id() == b.job_id() && a.generation() == b.generation() && a.rank() == b.rank();
}

// What runs of a job that is held, or not known, is left alone until it has exited. Returns whether it was one.
bool ForgetHeld(Turn& turn, Host& host, const v1::Fact& fact) {
  const auto is_it = [&](const v1::TrainerKey& key) { return SameTrainer(key, fact.key()); };
  const auto runs_it = [&](const v1::RunningTrainer& running) { return SameTrainer(running.key(), fact.key()); };
  if (!fact.has_exited()) {
    return std::any_of(host.unknown.begin(), host.unknown.end(), is_it) ||
           std::any_of(host.held.begin(), host.held.end(), runs_it);
  }
  const bool unknown = std::erase_if(host.unknown, is_it) > 0;
  const bool held = std::erase_if(host.held, runs_it) > 0;
  if (!unknown && !held) return false;
  turn.Push(host.name);
  turn.ScheduleAll();
  if (unknown) SettleUnknown(turn);
  if (held) SettleHeld(turn, turn.state.jobs.at(JobId(fact.key().job_id())));
  return true;
}

// The slot of a trainer of the past is free once it has exited.
void ForgetStray(Turn& turn, Host& host, const v1::Fact& fact) {
  if (!host.unheard.empty()) {
    std::erase_if(host.unheard, [&](const auto& unheard) { return SameTrainer(unheard.first, fact.key()); });
  }
  if (!fact.has_exited()) return;
  auto stray = std::find_if(host.strays.begin(), host.strays.end(),
                            [&](const v1::TrainerKey& key) { return SameTrainer(key, fact.key()); });
  if (stray == host.strays.end()) return;
  host.strays.erase(stray);
  turn.ScheduleAll();
}

// OK, or why the fact changes nothing.
absl::Status CheckFence(const State& state, const Host& host, const v1::Fact& fact) {
  const v1::TrainerKey& key = fact.key();
  auto it = state.jobs.find(JobId(key.job_id()));
  if (it == state.jobs.end()) return absl::NotFoundError("no such job");
  const Job& job = it->second;
  if (key.generation() != job.head().generation()) {
    return absl::AbortedError(absl::StrCat("the job is at generation ", job.head().generation()));
  }
  if (IsFinal(job.state())) return absl::AbortedError(absl::StrCat("the job is ", StateName(job.state())));
  // A host that was forgotten has no part in what it ran before.
  if (key.rank() >= job.ranks.size() || job.ranks[key.rank()].host() != host.name || !host.jobs.contains(job.id)) {
    return absl::AbortedError("that rank is not on this host");
  }
  return absl::OkStatus();
}

// Whether rank 0 made steps of which nobody has reported yet.
bool ReportsAreBehind(const Job& job) {
  if (job.ranks.empty() || IsFinal(job.state())) return false;
  const v1::RankRecord& first = job.ranks.front().record;
  return first.finished() && first.first_step() <= first.finished_step() && job.reported_step < first.finished_step();
}

// Once this is acknowledged its daemon forgets the trainer and its reports. Those that are here become durable with it;
// those on their way are waited for.
void KeepLastReports(Turn& turn, Host& host, Job& job, const v1::Fact& fact) {
  turn.KeepReports(job);
  if (!ReportsAreBehind(job)) return;
  const absl::Time until = turn.now + (fact.has_exited() ? kReportsGrace : kReportsPatience);
  HeldAck& held = host.held_acks.try_emplace(job.id, HeldAck{.fact = fact.sequence(), .until = until}).first->second;
  held.until = std::min(held.until, until);
}

void ApplyFact(Turn& turn, Host& host, const v1::Fact& fact) {
  // Its generation, or its job, is none that a fact could be counted for; the folder of the run has what it saved.
  if (ForgetHeld(turn, host, fact)) return;
  ForgetStray(turn, host, fact);
  if (absl::Status status = CheckFence(turn.state, host, fact); !status.ok()) {
    turn.Info(absl::StrCat("fact '", FactName(fact), "' of rank ", fact.key().rank(), ", generation ",
                           fact.key().generation(), ", job ", fact.key().job_id(), " from ", host.name.value(),
                           " is refused: ", std::string(status.message())));
    return;
  }
  Job& job = turn.state.jobs.at(JobId(fact.key().job_id()));
  Rank& rank = job.ranks[fact.key().rank()];
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
  if (fact.key().rank() == 0 && (fact.has_finished() || fact.has_exited())) KeepLastReports(turn, host, job, fact);
  turn.Touch(job);
}

// All that is taken, but for what waits for the reports of a rank 0 that has ended.
void Acknowledge(Turn& turn, Host& host) {
  uint64_t acked = host.applied_fact;
  for (const auto& [job, held] : host.held_acks) acked = std::min(acked, held.fact - 1);
  if (acked > host.record.acked_fact()) {
    host.record.set_acked_fact(acked);
    turn.Save(host);
  }
  SendToHost ack{host.session, {}};
  ack.message.mutable_ack()->set_sequence(host.record.acked_fact());
  turn.Emit(std::move(ack));
}

}  // namespace

void ReleaseHeldAck(Turn& turn, Host& host, const Job& job) {
  auto held = host.held_acks.find(job.id);
  if (held == host.held_acks.end() || (ReportsAreBehind(job) && turn.now < held->second.until)) return;
  host.held_acks.erase(held);
  if (host.attached()) Acknowledge(turn, host);
}

void ReleaseHeldAcks(Turn& turn) {
  for (auto& [name, host] : turn.state.hosts) {
    if (host.held_acks.empty()) continue;
    size_t before = host.held_acks.size();
    std::erase_if(host.held_acks, [&](const auto& held) { return turn.now >= held.second.until; });
    if (host.held_acks.size() < before && host.attached()) Acknowledge(turn, host);
  }
}

void Run(Turn& turn, HostFactsReceived& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;  // an old stream: its daemon tells them again on its new one
  Host& host = turn.state.hosts.at(session->second);
  for (const v1::Fact& fact : event.batch.facts()) {
    if (fact.sequence() <= host.applied_fact) continue;
    host.applied_fact = fact.sequence();
    ApplyFact(turn, host, fact);
  }
  Acknowledge(turn, host);
}

}  // namespace trainyard
