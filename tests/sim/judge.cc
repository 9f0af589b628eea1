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
// The shortest real time after which the coordinator gives up a forming group. It is less than kFormingPatience,
// because the coordinator's clock may be slightly fast.
const absl::Duration kMinForming = kFormingPatience - absl::Milliseconds(300);
// A scenario has 2 watchers per job (operators.cc). If a job has more than this limit, the coordinator has not
// forgotten disconnected ones.
constexpr size_t kWatchersMax = 4;
// A job whose reason contains this text may fail although it has restarts left: a host cannot start its trainer and no
// other host can run the job, or its last save has failed permanently (policy/recovery).
constexpr char kNoSpace[] = "No space left";
// The text of policy/hang for a rank that is not known to be stopped.
constexpr char kSilent[] = " sent no report for ";
// The texts of the coordinator for a host that is lost because of its silence, and by an operator's request.
constexpr char kLost[] = " is lost: no contact";
constexpr char kLostByOperator[] = " is lost: the operator";

}  // namespace

std::string NameOf(const Job& job) { return absl::StrCat(job.id.value(), " generation ", job.head().generation()); }

void Judge::ReportViolation(const char* invariant, std::string text) {
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
    ReportViolation(invariant::kRankOnce,
                    absl::StrCat(agent::Describe(id), " is started on ", host, ", but was started on ",
                                 processes_.at(known->second).host, " before"));
  }
  pids_[id] = pid;
  processes_[pid] = {.id = id, .host = host};
  newest_started_[id.job] = std::max(newest_started_[id.job], id.generation.value());
  Trace(absl::StrCat(host, ": ", agent::Describe(id), " runs, pid ", pid));
  CheckTensorGroup(id, host);
}

void Judge::CheckTensorGroup(const TrainerId& id, const std::string& host) {
  const auto layout = layouts_.find(id.job);
  if (layout == layouts_.end()) return;
  const auto [first, is_new] = tensor_hosts_.try_emplace({agent::GroupOf(id), id.rank / layout->second.tensor}, host);
  if (is_new || first->second == host) return;
  ReportViolation(invariant::kTensorHost, absl::StrCat(agent::Describe(id), " is started on ", host,
                                                       ", but its tensor group is on ", first->second));
}

void Judge::NoteHarm(const GroupId& group, absl::string_view what) {
  if (harmed_.try_emplace(group, what).second) {
    Trace(absl::StrCat("(", group.first.value(), " generation ", group.second.value(), " is harmed: ", what, ")"));
  }
}

void Judge::StateSent(const JobId& job, uint64_t generation, v1::JobState state) {
  KnownState& published = published_[job];
  published.generation = std::max(published.generation, generation);
  if (IsFinal(state)) published.state = state;
}

void Judge::CheckEvent(const JobId& job, const v1::Event& event) {
  if (event.has_state() && event.state().reason().empty()) {
    ReportViolation(invariant::kReasons,
                    absl::StrCat(job.value(), ": state ", StateName(event.state().state()), " has no reason"));
  }
  if (event.has_notice() && event.notice().text().empty()) {
    ReportViolation(invariant::kReasons, absl::StrCat(job.value(), ": a notice has no text"));
  }
  // The simulated rank 0 reports its generation in the field of the learning rate (Trainer::StepMade).
  if (event.has_step() && static_cast<uint64_t>(event.step().lr()) > event.generation()) {
    ReportViolation(invariant::kOneGeneration,
                    absl::StrCat(job.value(), ": step ", event.step().step(), " was made by generation ",
                                 event.step().lr(), ", but was sent as of generation ", event.generation()));
  }
}

// Checks that a host was declared lost only after it had been silent for a lease.
void Judge::CheckGivenUp(const TrainerId& id, const v1::RankRecord& record) {
  // The shortest lease, minus the possible delay of a tick.
  constexpr absl::Duration kMinSilence = absl::Milliseconds(2'500);
  // The reports count as lost even if the host sends them later: the next generation may resume from a save that was
  // never reported, and then skips these steps.
  const bool lost = absl::StrContains(record.gone(), kLostByOperator) || absl::StrContains(record.gone(), kLost);
  if (record.rank() == 0 && lost) NoteLostReports(id.job);
  if (!absl::StrContains(record.gone(), kLost) || !given_up_.insert(id).second || !last_contact) return;
  absl::Duration silent = engine_.now() - last_contact(record.host());
  // Ranks of a script do not report whether they wait for the host, so a long silence alone decides.
  if (scripts_.contains(id.job) && silent >= kMinForming) NoteHarm(agent::GroupOf(id), "its host was silent for long");
  if (silent >= kMinSilence) return;
  ReportViolation(invariant::kContact,
                  absl::StrCat(agent::Describe(id), ": ", record.gone(), "; but the last contact was ",
                               absl::FormatDuration(silent), " ago"));
}

void Judge::CheckDecision(const JobId& job, const v1::Event& event) {
  const v1::Notice& notice = event.notice();
  uint32_t rank = 0;
  bool names_straggler = notice.rule() == "straggler" && absl::StrContains(notice.text(), " is slow") &&
                         absl::SimpleAtoi(std::string(notice.text().substr(5, notice.text().find(' ', 5) - 5)), &rank);
  if (names_straggler && !slow_.contains({job, Generation(event.generation()), rank})) {
    ReportViolation(invariant::kTrueFacts,
                    absl::StrCat(job.value(), ": ", notice.text(), ", but that rank was never slowed down"));
  }
}

void Judge::CheckRank(const Job& job, const Rank& rank) {
  const v1::RankRecord& record = rank.record;
  TrainerId id{job.id, job.generation(), record.rank()};
  CheckGivenUp(id, record);
  if (record.pid() == 0) return;
  auto at = processes_.find(record.pid());
  if (at == processes_.end() || at->second.id != id) {
    return ReportViolation(invariant::kOneGeneration,
                           absl::StrCat(NameOf(job), " rank ", record.rank(), " has pid ", record.pid(), ", which is ",
                                        at == processes_.end() ? "no process" : agent::Describe(at->second.id)));
  }
  const TrainerTruth& truth = at->second;
  if (record.ready() && !truth.ready) {
    ReportViolation(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " is recorded as ready but never was"));
  }
  if (record.finished() && !truth.finished) {
    ReportViolation(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " is recorded as finished but never was"));
  }
  if (record.has_exit() && !truth.ended && record.exit().cause() != v1::TrainerExited::CAUSE_LOST) {
    ReportViolation(invariant::kTrueFacts, absl::StrCat(agent::Describe(id), " is recorded as exited but is running"));
  }
}

// Checks that a generation of a running job ends only for a valid cause.
void Judge::CheckStateChange(const Job& job) {
  KnownState& before = known_states_[job.id];
  KnownState now{job.head().generation(), job.state(), before.running_since};
  if (now.state != before.state || now.generation != before.generation) now.running_since = engine_.now();
  if (now.generation < before.generation) {
    ReportViolation(invariant::kDurable, absl::StrCat(job.id.value(), " went back from generation ", before.generation,
                                                      " to ", now.generation));
  }
  bool ran = before.state == v1::JOB_STATE_RUNNING;
  const bool is_script = scripts_.contains(job.id);
  if (is_script && ran && now.state != before.state) {
    CheckScriptEnd(job, before.state, engine_.now() - before.running_since);
  }
  const bool grows = growths_.contains(job.id) && growths_.at(job.id).first == before.generation;
  bool continues = now.generation == before.generation &&
                   (now.state == v1::JOB_STATE_RUNNING || now.state == v1::JOB_STATE_SUCCEEDED);
  GroupId group{job.id, Generation(before.generation)};
  // A group that waits for `go`, which does not arrive, loses nothing by being formed again.
  bool waited = !began_.contains(group) && engine_.now() - before.running_since >= kMinForming;
  if (ran && !continues && !waited && !grows && !harmed_.contains(group) && !harmed_jobs_.contains(job.id)) {
    ReportViolation(invariant::kContact,
                    absl::StrCat(job.id.value(), " generation ", before.generation,
                                 " was RUNNING, nothing happened to "
                                 "it, and now it is ",
                                 StateName(now.state), " at generation ", now.generation, ": ", job.head().reason()));
  }
  if (now.state == v1::JOB_STATE_CANCELLED && !cancelled_.contains(job.id)) {
    ReportViolation(invariant::kOutcome, absl::StrCat(job.id.value(), " is CANCELLED without a request"));
  }
  if (now.state == v1::JOB_STATE_FAILED && before.state != v1::JOB_STATE_FAILED &&
      job.head().restarts() < job.head().spec().recovery().max_restarts() &&
      !absl::StrContains(job.head().reason(), kNoSpace) && !sharing_.contains(job.id)) {
    ReportViolation(invariant::kOutcome,
                    absl::StrCat(job.id.value(), " FAILED after ", job.head().restarts(), " of ",
                                 job.head().spec().recovery().max_restarts(), " restarts: ", job.head().reason()));
  }
  if (now.state == v1::JOB_STATE_SUCCEEDED && before.state != v1::JOB_STATE_SUCCEEDED) CheckSuccess(job);
  before = now;
}

void Judge::CheckSuccess(const Job& job) {
  if (scripts_.contains(job.id)) {
    if (scripts_done_.contains(job.id)) return;
    return ReportViolation(invariant::kSaved, absl::StrCat(NameOf(job), " has SUCCEEDED, but its work is not done"));
  }
  const auto& checkpoints = folder_of(job.id).checkpoints;
  auto last = checkpoints.find(job.head().spec().train().steps());
  if (last != checkpoints.end() && last->second.complete) return;
  ReportViolation(invariant::kSaved,
                  absl::StrCat(NameOf(job), " has SUCCEEDED, but the checkpoint of its last step is ",
                               last == checkpoints.end() ? "missing" : "incomplete"));
}

// A rank that is blamed was stopped or left out an operation, unless its reports did not arrive.
void Judge::CheckHang(const Job& job) {
  const v1::FailureRecord& failure = job.record.failure();
  const GroupId group(job.id, job.generation());
  if (failure.kind() != v1::FailureRecord::KIND_HANG || !hung_.insert(group).second) return;
  const bool blames_a_rank = absl::StartsWith(failure.text(), absl::StrCat("rank ", failure.rank(), " on ")) ||
                             absl::StartsWith(failure.text(), absl::StrCat("ranks ", failure.rank(), " on "));
  if (!blames_a_rank || absl::StrContains(failure.text(), kSilent)) return;
  if (faulty_.contains({job.id, job.generation(), failure.rank()})) return;
  ReportViolation(invariant::kBlame, absl::StrCat(NameOf(job), " hangs: ", failure.text(),
                                                  "; but that rank was not stopped and left out no operation"));
}

void Judge::CheckBlamed(const TrainerId& id, absl::Duration limit) {
  if (hung_.contains(agent::GroupOf(id))) return;
  ReportViolation(invariant::kBlame, absl::StrCat(agent::Describe(id), " has been stopped for ",
                                                  absl::FormatDuration(limit), ", and nothing was done about it"));
}

void Judge::CheckJob(const Job& job) {
  if (job.head().reason().empty())
    ReportViolation(invariant::kReasons, absl::StrCat(NameOf(job), " has no reason for its state"));
  if (auto newest = newest_started_.find(job.id);
      newest != newest_started_.end() && newest->second > job.head().generation()) {
    ReportViolation(invariant::kOneGeneration, absl::StrCat(NameOf(job), " is current, but ranks of generation ",
                                                            newest->second, " were started"));
  }
  for (const Rank& rank : job.ranks) CheckRank(job, rank);
  for (const v1::CheckpointInfo& saved : job.head().checkpoints()) {
    // Generation 0: another job or another cluster wrote it, and a group of this job resumed from it.
    if (saved.generation() != 0 && saved.manifest_hash() != HashOf(saved.step(), saved.generation())) {
      ReportViolation(invariant::kOneGeneration, absl::StrCat(NameOf(job), ": checkpoint ", saved.manifest_hash(),
                                                              " is recorded as of generation ", saved.generation()));
    }
  }
  const History& history = job.history;
  if (history.durable().size() > limits::kDurableEvents || history.reports().size() > limits::kJobEvents ||
      job.waiting_watchers.size() > kWatchersMax) {
    ReportViolation(invariant::kBounded,
                    absl::StrCat(NameOf(job), " keeps ", history.durable().size(), " events, ",
                                 history.reports().size(), " reports and ", job.waiting_watchers.size(), " watchers"));
  }
  CheckStateChange(job);
  if (scripts_.contains(job.id)) CheckScript(job);
  CheckHang(job);
}

void Judge::AfterRound(const Core& core, bool check_state) {
  if (!check_state) return;
  if (absl::Status status = core.Check(); !status.ok())
    ReportViolation(invariant::kConsistent, std::string(status.message()));
  CheckQueue(core);
  for (const auto& [id, job] : core.state().jobs) CheckJob(job);
  if (core.state().cluster.durable().size() > limits::kClusterEvents) {
    ReportViolation(invariant::kBounded,
                    absl::StrCat("the cluster's history has ", core.state().cluster.durable().size(),
                                 " events; at most ", limits::kClusterEvents, " may be stored"));
  }
}

void Judge::AfterLoad(const Core& core) {
  // Forgets the states that the previous incarnation had not stored: no watcher received them. The changes of stored
  // states were checked when they happened.
  std::erase_if(known_states_, [&](const auto& entry) { return !core.state().jobs.contains(entry.first); });
  growths_.clear();  // the end of a group may not have been stored
  for (const auto& [id, job] : core.state().jobs) {
    KnownState& known = known_states_[id];
    if (known.generation != job.head().generation() || known.state != job.state()) {
      known = {job.head().generation(), job.state(), engine_.now()};
    }
  }
  for (const JobId& job : submitted_) {
    if (core.state().jobs.contains(job)) continue;
    ReportViolation(invariant::kDurable, absl::StrCat("the submission of ", job.value(), " was answered, but is lost"));
  }
  for (const auto& [job, published] : published_) {
    auto at = core.state().jobs.find(job);
    if (at == core.state().jobs.end()) continue;
    bool behind = at->second.head().generation() < published.generation;
    bool other_end = published.state != v1::JOB_STATE_UNSPECIFIED && at->second.state() != published.state;
    if (!behind && !other_end) continue;
    ReportViolation(invariant::kDurable,
                    absl::StrCat("watchers of ", job.value(), " were sent generation ", published.generation, " and ",
                                 StateName(published.state), ", the store has ", NameOf(at->second), ", ",
                                 StateName(at->second.state())));
  }
  for (const auto& [id, steps] : granted_) {
    auto at = core.state().jobs.find(id);
    if (at == core.state().jobs.end() || IsFinal(at->second.state()) || steps.empty()) continue;
    if (NewestResumeStep(at->second.head(), at->second.record.grants()).value_or(0) >= steps.rbegin()->first) continue;
    ReportViolation(invariant::kDurable, absl::StrCat(id.value(), ": step ", steps.rbegin()->first,
                                                      " was granted, but the store does not have it"));
  }
  for (const JobId& job : cancelled_) {
    auto at = core.state().jobs.find(job);
    if (at == core.state().jobs.end() || IsFinal(at->second.state()) || at->second.record.cancelled()) continue;
    if (cancel_answered_.contains(job)) {
      ReportViolation(invariant::kDurable,
                      absl::StrCat("the cancellation of ", job.value(), " was answered, but is lost"));
    }
  }
}

// ---- saves ----

void Judge::Granted(const JobId& job, const v1::CheckpointGrant& grant) {
  auto [known, is_new] = granted_[job].try_emplace(grant.step(), grant.manifest_hash());
  if (known->second != grant.manifest_hash()) {
    return ReportViolation(invariant::kOneContent,
                           absl::StrCat(job.value(), ": step ", grant.step(), " is granted with ",
                                        grant.manifest_hash(), ", and was granted before with ", known->second));
  }
  if (grant.manifest_hash() == HashOf(grant.step(), grant.generation())) return;
  ReportViolation(invariant::kFencedSave, absl::StrCat(job.value(), ": ", grant.manifest_hash(),
                                                       " is granted to generation ", grant.generation()));
}

void Judge::CheckNamed(const JobId& job, Writer writer, uint64_t step, const RunFolder& folder) {
  if (folder.settled_by != job || folder.settled > writer) {
    ReportViolation(invariant::kFencedSave, absl::StrCat(job.value(), ": generation ", writer.generation,
                                                         " gives step ", step, " its name, although generation ",
                                                         folder.settled.generation, " has settled the folder"));
  }
  if (!folder.checkpoints.at(step).complete) {
    ReportViolation(invariant::kWholeSaves,
                    absl::StrCat(job.value(), ": step ", step, " has its name but is incomplete"));
  }
}

void Judge::CheckClaim(const TrainerId& id, const RunFolder& folder) {
  auto holder = processes_.find(folder.holder);
  if (holder == processes_.end() || holder->second.ended || holder->second.id.job == id.job) return;
  ReportViolation(invariant::kOneJob, absl::StrCat(agent::Describe(id), " claims the folder of ",
                                                   agent::Describe(holder->second.id), ", which trains in it"));
}

void Judge::CheckRestored(const TrainerId& id, uint64_t step, const Checkpoint* from, bool allow_others) {
  if (from != nullptr && !from->complete) {
    ReportViolation(invariant::kWholeSaves,
                    absl::StrCat(agent::Describe(id), " resumes from step ", step, ", which is incomplete"));
  }
  if (from != nullptr && from->job != id.job && !allow_others) {
    ReportViolation(invariant::kOneJob, absl::StrCat(agent::Describe(id), " resumes from step ", step, " of ",
                                                     from->job.value(), ", although no user requested it"));
  }
  const auto& granted = granted_[id.job];
  if (granted.empty() || granted.rbegin()->first <= step) return;
  ReportViolation(invariant::kGrantsKept, absl::StrCat(agent::Describe(id), " resumes from step ", step, ", and step ",
                                                       granted.rbegin()->first, " was granted"));
}

void Judge::CheckNothingLeft(const JobId& job, const RunFolder& folder) {
  for (const auto& [key, partial] : folder.partials) {
    if (partial.job == folder.settled_by && key.second >= folder.settled) continue;
    ReportViolation(invariant::kNoLeak, absl::StrCat(job.value(), ": the partial of step ", key.first,
                                                     " of generation ", key.second.generation, " was never removed"));
  }
}

JobOutcome Judge::OutcomeOf(const JobId& job) const {
  auto at = known_states_.find(job);
  return at == known_states_.end() ? JobOutcome() : JobOutcome{at->second.state, at->second.generation};
}

void Judge::AtEnd(const Core& core) {
  AfterLoad(core);
  for (const JobId& id : submitted_) {
    auto at = core.state().jobs.find(id);
    if (at == core.state().jobs.end()) continue;
    const Job& job = at->second;
    if (IsFinal(job.state())) continue;
    ReportViolation(invariant::kProgress,
                    absl::StrCat(NameOf(job), " is still ", StateName(job.state()), ": ", job.head().reason()));
  }
}

}  // namespace trainyard::sim
