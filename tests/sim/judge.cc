#include "tests/sim/judge.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/limits.h"
#include "coordinator/policy/host_loss.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/saves.h"
#include "tests/sim/storage.h"

namespace trainyard::sim {
namespace {

constexpr size_t kTraceLines = 4'000;
// The coordinator's clock may be slightly fast.
const absl::Duration kLeastForming = kFormingPatience - absl::Milliseconds(300);
// More watchers of a job than a scenario has would be disconnected ones.
constexpr size_t kWatchersMax = 4;
// A host that cannot start anything fails the job permanently, by policy/recovery.
constexpr char kNoSpace[] = "No space left";
// The text of policy/host_loss for a lost host.
constexpr char kLost[] = " is lost: no contact";
constexpr char kLostByWord[] = " is lost: the operator";

std::string Name(const Job& job) { return absl::StrCat(job.id.value(), " generation ", job.head().generation()); }

}  // namespace

void Judge::Break(const char* invariant, std::string text) {
  Trace(absl::StrCat("BROKEN ", invariant, ": ", text));
  if (!violation_.has_value()) violation_ = Violation{invariant, std::move(text), engine_.now()};
}

void Judge::Trace(absl::string_view text) {
  if (!trace_) return;
  double at = absl::ToDoubleSeconds(engine_.now() - ClockModel::kOrigin);
  lines_.push_back(absl::StrFormat("%9.4f  %s", at, text));
  if (lines_.size() > kTraceLines) lines_.pop_front();
}

void Judge::Started(const TrainerId& id, const std::string& host, int64_t pid) {
  if (auto known = pids_.find(id); known != pids_.end()) {
    Break(invariant::kRankOnce, absl::StrCat(agent::Describe(id), " is started on ", host, ", but was started on ",
                                             processes_.at(known->second).host, " before"));
  }
  pids_[id] = pid;
  processes_[pid] = {.id = id, .host = host};
  newest_[id.job] = std::max(newest_[id.job], id.generation.value());
  Trace(absl::StrCat(host, ": ", agent::Describe(id), " runs, pid ", pid));
}

void Judge::Harm(const GroupId& group, absl::string_view what) {
  if (harmed_.try_emplace(group, what).second) {
    Trace(absl::StrCat("(", group.first.value(), " generation ", group.second.value(), " is harmed: ", what, ")"));
  }
}

void Judge::StateSent(const JobId& job, uint64_t generation, v1::JobState state) {
  Fate& published = published_[job];
  published.generation = std::max(published.generation, generation);
  if (IsFinal(state)) published.state = state;
}

void Judge::CheckEvent(const JobId& job, const v1::Event& event) {
  if (event.has_state() && event.state().reason().empty()) {
    Break(invariant::kReasons,
          absl::StrCat(job.value(), ": state ", StateName(event.state().state()), " has no reason"));
  }
  if (event.has_notice() && event.notice().text().empty()) {
    Break(invariant::kReasons, absl::StrCat(job.value(), ": a notice has no text"));
  }
  // Rank 0 reports its generation as the learning rate.
  if (event.has_step() && static_cast<uint64_t>(event.step().lr()) > event.generation()) {
    Break(invariant::kOneGeneration,
          absl::StrCat(job.value(), ": step ", event.step().step(), " was made by generation ", event.step().lr(),
                       ", but was sent as of generation ", event.generation()));
  }
}

// A lost host has been silent for a lease.
void Judge::CheckGivenUp(const TrainerId& id, const v1::RankRecord& record) {
  // The shortest lease, minus the possible delay of a tick.
  constexpr absl::Duration kLeastSilence = absl::Milliseconds(2'500);
  // Whatever it may still report: the next generation may resume from a save that was never reported.
  const bool lost = absl::StrContains(record.gone(), kLostByWord) || absl::StrContains(record.gone(), kLost);
  if (record.rank() == 0 && lost) LoseReports(id.job);
  if (!absl::StrContains(record.gone(), kLost) || !given_up_.insert(id).second || !last_contact) return;
  absl::Duration silent = engine_.now() - last_contact(record.host());
  if (silent >= kLeastSilence) return;
  Break(invariant::kContact, absl::StrCat(agent::Describe(id), ": ", record.gone(), "; but the last contact was ",
                                          absl::FormatDuration(silent), " ago"));
}

void Judge::CheckDecision(const JobId& job, const v1::Event& event) {
  const v1::Notice& notice = event.notice();
  uint32_t rank = 0;
  bool names = notice.rule() == "straggler" && absl::StrContains(notice.text(), " is slow") &&
               absl::SimpleAtoi(std::string(notice.text().substr(5, notice.text().find(' ', 5) - 5)), &rank);
  if (names && !slow_.contains({job, Generation(event.generation()), rank})) {
    Break(invariant::kTrueFacts, absl::StrCat(job.value(), ": ", notice.text(), ", but it never happened"));
  }
}

void Judge::CheckRank(const Job& job, const Rank& rank) {
  const v1::RankRecord& record = rank.record;
  TrainerId id{job.id, job.generation(), record.rank()};
  CheckGivenUp(id, record);
  if (record.pid() == 0) return;
  auto at = processes_.find(record.pid());
  if (at == processes_.end() || at->second.id != id) {
    return Break(invariant::kOneGeneration,
                 absl::StrCat(Name(job), " rank ", record.rank(), " has pid ", record.pid(), ", which is ",
                              at == processes_.end() ? "no process" : agent::Describe(at->second.id)));
  }
  const TrainerTruth& truth = at->second;
  if (record.ready() && !truth.ready) {
    Break(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " counts as ready but never was"));
  }
  if (record.finished() && !truth.finished) {
    Break(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " counts as finished but never was"));
  }
  if (record.has_exit() && !truth.ended && record.exit().cause() != v1::TrainerExited::CAUSE_LOST) {
    Break(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " counts as exited but is running"));
  }
}

// A generation of a running job ends only for a valid cause.
void Judge::CheckFate(const Job& job) {
  Fate& before = fates_[job.id];
  Fate now{job.head().generation(), job.state(), before.running_since};
  if (now.state != before.state || now.generation != before.generation) now.running_since = engine_.now();
  if (now.generation < before.generation) {
    Break(invariant::kDurable,
          absl::StrCat(job.id.value(), " went back from generation ", before.generation, " to ", now.generation));
  }
  bool ran = before.state == v1::JOB_STATE_RUNNING;
  bool goes_on = now.generation == before.generation &&
                 (now.state == v1::JOB_STATE_RUNNING || now.state == v1::JOB_STATE_SUCCEEDED);
  GroupId group{job.id, Generation(before.generation)};
  // A group that waits for `go`, which does not arrive, loses nothing by being formed again.
  bool waited = !began_.contains(group) && engine_.now() - before.running_since >= kLeastForming;
  if (ran && !goes_on && !waited && !harmed_.contains(group) && !harmed_jobs_.contains(job.id)) {
    Break(invariant::kContact,
          absl::StrCat(job.id.value(), " generation ", before.generation,
                       " was RUNNING, nothing befell "
                       "it, and now it is ",
                       StateName(now.state), " at generation ", now.generation, ": ", job.head().reason()));
  }
  if (now.state == v1::JOB_STATE_CANCELLED && !cancelled_.contains(job.id)) {
    Break(invariant::kOutcome, absl::StrCat(job.id.value(), " is CANCELLED without a request"));
  }
  if (now.state == v1::JOB_STATE_FAILED && before.state != v1::JOB_STATE_FAILED &&
      job.head().restarts() < job.head().spec().recovery().max_restarts() &&
      !absl::StrContains(job.head().reason(), kNoSpace) && !sharing_.contains(job.id)) {
    Break(invariant::kOutcome,
          absl::StrCat(job.id.value(), " FAILED after ", job.head().restarts(), " of ",
                       job.head().spec().recovery().max_restarts(), " restarts: ", job.head().reason()));
  }
  if (now.state == v1::JOB_STATE_SUCCEEDED && before.state != v1::JOB_STATE_SUCCEEDED) CheckSuccess(job);
  before = now;
}

void Judge::CheckSuccess(const Job& job) {
  const auto& checkpoints = folder_of(job.id).checkpoints;
  auto last = checkpoints.find(job.head().spec().train().steps());
  if (last != checkpoints.end() && last->second.whole) return;
  Break(invariant::kSaved, absl::StrCat(Name(job), " has SUCCEEDED, and the checkpoint of its last step is ",
                                        last == checkpoints.end() ? "not there" : "not whole"));
}

void Judge::CheckJob(const Job& job) {
  if (job.head().reason().empty()) Break(invariant::kReasons, absl::StrCat(Name(job), " has no reason for its state"));
  if (auto newest = newest_.find(job.id); newest != newest_.end() && newest->second > job.head().generation()) {
    Break(invariant::kOneGeneration,
          absl::StrCat(Name(job), " is current, but ranks of generation ", newest->second, " were started"));
  }
  for (const Rank& rank : job.ranks) CheckRank(job, rank);
  for (const v1::CheckpointInfo& saved : job.head().checkpoints()) {
    // Generation 0: another writer left it, and a group resumed from it.
    if (saved.generation() != 0 && saved.manifest_hash() != HashOf(saved.step(), saved.generation())) {
      Break(invariant::kOneGeneration, absl::StrCat(Name(job), ": checkpoint ", saved.manifest_hash(),
                                                    " is recorded as of generation ", saved.generation()));
    }
  }
  const History& history = job.history;
  if (history.durable().size() > limits::kDurableEvents || history.reports().size() > limits::kJobEvents ||
      job.waiting.size() > kWatchersMax) {
    Break(invariant::kBounded,
          absl::StrCat(Name(job), " keeps ", history.durable().size(), " events, ", history.reports().size(),
                       " reports and ", job.waiting.size(), " watchers"));
  }
  CheckFate(job);
}

void Judge::AfterRound(const Core& core, bool whole) {
  if (!whole) return;
  if (absl::Status status = core.Check(); !status.ok()) Break(invariant::kConsistent, std::string(status.message()));
  for (const auto& [id, job] : core.state().jobs) CheckJob(job);
  if (core.state().cluster.durable().size() > limits::kClusterEvents) {
    Break(invariant::kBounded, absl::StrCat("the cluster's history has ", core.state().cluster.durable().size()));
  }
}

void Judge::AfterLoad(const Core& core) {
  // What the previous incarnation did not store was never sent; how the jobs' states came about was checked before.
  std::erase_if(fates_, [&](const auto& entry) { return !core.state().jobs.contains(entry.first); });
  for (const auto& [id, job] : core.state().jobs) {
    Fate& fate = fates_[id];
    if (fate.generation != job.head().generation() || fate.state != job.state()) {
      fate = {job.head().generation(), job.state(), engine_.now()};
    }
  }
  for (const JobId& job : submitted_) {
    if (core.state().jobs.contains(job)) continue;
    Break(invariant::kDurable, absl::StrCat("the submission of ", job.value(), " was answered, but is lost"));
  }
  for (const auto& [job, published] : published_) {
    auto at = core.state().jobs.find(job);
    if (at == core.state().jobs.end()) continue;
    bool behind = at->second.head().generation() < published.generation;
    bool other_end = published.state != v1::JOB_STATE_UNSPECIFIED && at->second.state() != published.state;
    if (!behind && !other_end) continue;
    Break(invariant::kDurable, absl::StrCat("watchers of ", job.value(), " were sent generation ", published.generation,
                                            " and ", StateName(published.state), ", the store has ", Name(at->second),
                                            ", ", StateName(at->second.state())));
  }
  for (const auto& [id, steps] : granted_) {
    auto at = core.state().jobs.find(id);
    if (at == core.state().jobs.end() || IsFinal(at->second.state()) || steps.empty()) continue;
    if (NewestKeptStep(at->second.head(), at->second.record.grants()).value_or(0) >= steps.rbegin()->first) continue;
    Break(invariant::kDurable,
          absl::StrCat(id.value(), ": step ", steps.rbegin()->first, " was granted, but the store does not have it"));
  }
  for (const JobId& job : cancelled_) {
    auto at = core.state().jobs.find(job);
    if (at == core.state().jobs.end() || IsFinal(at->second.state()) || at->second.record.cancelled()) continue;
    if (cancel_answered_.contains(job)) {
      Break(invariant::kDurable, absl::StrCat("the cancellation of ", job.value(), " was answered, but is lost"));
    }
  }
}

// ---- of saves ----

void Judge::Granted(const JobId& job, const v1::CheckpointGrant& word) {
  auto [known, is_new] = granted_[job].try_emplace(word.step(), word.manifest_hash());
  if (known->second != word.manifest_hash()) {
    return Break(invariant::kOneContent, absl::StrCat(job.value(), ": step ", word.step(), " is granted with ",
                                                      word.manifest_hash(), ", and was with ", known->second));
  }
  if (word.manifest_hash() == HashOf(word.step(), word.generation())) return;
  Break(invariant::kFencedSave,
        absl::StrCat(job.value(), ": ", word.manifest_hash(), " is granted to generation ", word.generation()));
}

void Judge::CheckNamed(const JobId& job, Writer writer, uint64_t step, const RunFolder& folder) {
  if (folder.settled_by != job || folder.settled > writer) {
    Break(invariant::kFencedSave,
          absl::StrCat(job.value(), ": generation ", writer.generation, " gives step ", step,
                       " its name, and generation ", folder.settled.generation, " has settled the folder"));
  }
  if (!folder.checkpoints.at(step).whole) {
    Break(invariant::kWholeSaves, absl::StrCat(job.value(), ": step ", step, " has its name but is incomplete"));
  }
}

void Judge::CheckTaken(const TrainerId& id, const RunFolder& folder) {
  auto holder = processes_.find(folder.holder);
  if (holder == processes_.end() || holder->second.ended || holder->second.id.job == id.job) return;
  Break(invariant::kOneJob, absl::StrCat(agent::Describe(id), " claims the folder of ",
                                         agent::Describe(holder->second.id), ", which trains in it"));
}

void Judge::CheckRestored(const TrainerId& id, uint64_t step, const Checkpoint* from, bool of_others) {
  if (from != nullptr && !from->whole) {
    Break(invariant::kWholeSaves,
          absl::StrCat(agent::Describe(id), " resumes from step ", step, ", which is incomplete"));
  }
  if (from != nullptr && from->job != id.job && !of_others) {
    Break(invariant::kOneJob, absl::StrCat(agent::Describe(id), " resumes from step ", step, " of ", from->job.value(),
                                           ", although no user requested it"));
  }
  const auto& granted = granted_[id.job];
  if (granted.empty() || granted.rbegin()->first <= step) return;
  Break(invariant::kGrantsKept, absl::StrCat(agent::Describe(id), " resumes from step ", step, ", and step ",
                                             granted.rbegin()->first, " was granted"));
}

void Judge::CheckLeft(const JobId& job, const RunFolder& folder) {
  for (const auto& [key, partial] : folder.partials) {
    if (partial.job == folder.settled_by && key.second >= folder.settled) continue;
    Break(invariant::kNoLeak, absl::StrCat(job.value(), ": the partial of step ", key.first, " of generation ",
                                           key.second.generation, " was never removed"));
  }
}

JobOutcome Judge::OutcomeOf(const JobId& job) const {
  auto at = fates_.find(job);
  return at == fates_.end() ? JobOutcome() : JobOutcome{at->second.state, at->second.generation};
}

void Judge::AtEnd(const Core& core) {
  AfterLoad(core);
  for (const JobId& id : submitted_) {
    auto at = core.state().jobs.find(id);
    if (at == core.state().jobs.end()) continue;
    const Job& job = at->second;
    if (IsFinal(job.state())) continue;
    Break(invariant::kProgress,
          absl::StrCat(Name(job), " is still ", StateName(job.state()), ": ", job.head().reason()));
  }
}

}  // namespace trainyard::sim
