// Groups that make no progress, and ranks that are slow: gathers what ranks and their daemons report, asks
// policy/hang and policy/straggler, and carries out what they decide.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

constexpr size_t kCommunicators = 8;
constexpr size_t kWordBytes = 128;
constexpr size_t kPhaseTimes = 16;
constexpr size_t kPhaseBytes = 32;
constexpr absl::Duration kCpuInterval = absl::Milliseconds(400);
// Of a core. Less is what the threads of a process that waits use.
constexpr double kBusy = 0.05;
// What is learned is written when it was outgrown by so much.
constexpr double kOutgrown = 1.5;
constexpr absl::Duration kStragglerInterval = absl::Seconds(1);

v1::PhaseRecord* FindPhase(Job& job, absl::string_view phase) {
  for (v1::PhaseRecord& record : *job.record.mutable_phases()) {
    if (record.phase() == phase) return &record;
  }
  return nullptr;
}

PhaseFacts FactsOf(const Job& job, absl::string_view phase) {
  PhaseFacts facts;
  auto times = job.hang.times.find(std::string(phase));
  if (times != job.hang.times.end()) facts.learned_s = times->second.longest();
  for (const v1::PhaseRecord& record : job.record.phases()) {
    if (record.phase() != phase) continue;
    facts.doublings = record.doublings();
    // Of an earlier life of the coordinator.
    if (facts.learned_s == 0) facts.learned_s = record.learned_s();
  }
  return facts;
}

v1::PhaseRecord& PhaseRecordOf(Job& job, const std::string& phase) {
  v1::PhaseRecord* record = FindPhase(job, phase);
  if (record == nullptr) {
    record = job.record.add_phases();
    record->set_phase(phase);
  }
  return *record;
}

// The phases there are; others would let a trainer fill our memory.
bool IsMeasured(absl::string_view phase) {
  return phase == "first_step" || phase == "train" || phase == "evaluate" || phase == "save";
}

void Learn(Turn& turn, Job& job, const v1::RankReport& report, absl::Time made_at) {
  for (int i = 0; i < report.phase_times_size() && i < static_cast<int>(kPhaseTimes); ++i) {
    const v1::PhaseTime& time = report.phase_times(i);
    if (!IsMeasured(time.phase()) || !(time.longest_s() > 0)) continue;
    // A stall was in it.
    if (made_at - absl::Seconds(time.longest_s()) < job.hang.unlearned_until) continue;
    if (job.hang.told_learned && !job.hang.told.empty() && made_at > job.hang.stalled_since) continue;
    PhaseTimes& times = job.hang.times[time.phase()];
    times.Add(report.last_step(), time.longest_s());
    if (time.phase() == "train") job.head().set_learned_step_s(times.longest());
    v1::PhaseRecord& record = PhaseRecordOf(job, time.phase());
    if (times.longest() > kOutgrown * record.learned_s()) {
      record.set_learned_s(times.longest());
      turn.Save(job);
    }
  }
}

bool SameStand(const RankStand& stand, const v1::RankReport& report) {
  if (stand.phase != report.phase() || stand.last_step != report.last_step()) return false;
  if (static_cast<int>(stand.communicators.size()) != std::min<int>(report.communicators_size(), kCommunicators)) {
    return false;
  }
  for (size_t i = 0; i < stand.communicators.size(); ++i) {
    const v1::CommunicatorReport& now = report.communicators(static_cast<int>(i));
    if (stand.communicators[i].started() != now.started() || stand.communicators[i].completed() != now.completed()) {
      return false;
    }
  }
  return true;
}

v1::CommunicatorReport Bounded(const v1::CommunicatorReport& told) {
  v1::CommunicatorReport kept = told;
  kept.set_name(CutText(told.name(), kWordBytes));
  kept.set_waits_in(CutText(told.waits_in(), kWordBytes));
  kept.set_last_started(CutText(told.last_started(), kWordBytes));
  return kept;
}

void NoteProcess(Turn& turn, Rank& rank, const v1::RankReport& report) {
  RankStand& stand = rank.stand;
  stand.seen_at = turn.now;
  stand.silent = report.silent();
  stand.process_state = report.process_state().substr(0, 1);
  if (turn.now - rank.cpu_at < kCpuInterval || report.cpu_total_s() <= 0) return;
  if (rank.cpu_at != absl::InfinitePast()) {
    double share = (report.cpu_total_s() - rank.cpu_s) / absl::ToDoubleSeconds(turn.now - rank.cpu_at);
    if (share >= kBusy) stand.busy_at = turn.now;
  }
  rank.cpu_s = report.cpu_total_s();
  rank.cpu_at = turn.now;
}

// ---- hangs ----

HangFacts GatherFacts(const Turn& turn, const Job& job) {
  HangFacts facts;
  facts.since = job.hang.since;
  facts.restart = job.head().spec().recovery().on_hang() != v1::ON_HANG_NOTIFY;
  for (const Rank& rank : job.ranks) {
    RankStand stand = rank.stand;
    stand.rank = rank.record.rank();
    stand.host = rank.record.host();
    auto host = turn.state.hosts.find(rank.host());
    stand.reachable = host != turn.state.hosts.end() && host->second.reachable && host->second.attached();
    stand.ended = rank.ended() || rank.record.finished() || stand.phase == "ended";
    if (rank.look.has_value()) {
      if (rank.look->answer.has_value()) stand.examination = &*rank.look->answer;
      if (!rank.look->answer.has_value() && turn.now - rank.look->asked_at < kExaminationWait) facts.asked = true;
    }
    auto [phase, is_new] = facts.phases.try_emplace(stand.phase == "ready" ? "first_step" : stand.phase);
    if (is_new) phase->second = FactsOf(job, phase->first);
    facts.ranks.push_back(std::move(stand));
  }
  return facts;
}

void AskForLooks(Turn& turn, Job& job, const HangDecision& decision) {
  constexpr size_t kAtMost = 4;
  for (size_t i = 0; i < decision.culprits.size() && i < kAtMost; ++i) {
    Rank& rank = job.ranks[decision.culprits[i]];
    if (rank.look.has_value()) continue;
    rank.look = Look{.request_id = absl::StrCat(job.id.value(), ".g", job.head().generation(), ".r", rank.record.rank(),
                                                ".", absl::ToUnixMillis(turn.now)),
                     .asked_at = turn.now,
                     .answer = std::nullopt};
    turn.Push(rank.host());
  }
}

void ForgetLooks(Turn& turn, Job& job) {
  for (Rank& rank : job.ranks) {
    if (!rank.look.has_value()) continue;
    rank.look.reset();
    turn.Push(rank.host());
  }
}

// What was told of a stall is over: the ranks go on.
void EndStall(Turn& turn, Job& job) {
  HangWatch& watch = job.hang;
  if (!watch.stalled) return;
  watch.stalled = false;
  watch.suspects.clear();
  ForgetLooks(turn, job);
  if (watch.told.empty()) return;
  turn.Decide(job, "hang", "info",
              absl::StrCat("the ranks go on after ",
                           absl::FormatDuration(absl::Trunc(turn.now - watch.stalled_since, absl::Milliseconds(100))),
                           "; it was told: ", watch.told));
  // A phase that just took longer than thought is learned; one that somebody stopped is not.
  if (watch.told_learned) watch.unlearned_until = turn.now;
  watch.told.clear();
}

void CarryOut(Turn& turn, Job& job, const HangDecision& decision) {
  HangWatch& watch = job.hang;
  watch.stalled = true;
  watch.suspects.clear();
  watch.suspects.insert(decision.culprits.begin(), decision.culprits.end());
  if (decision.act == HangDecision::Act::kExamine) return AskForLooks(turn, job, decision);
  if (decision.act == HangDecision::Act::kNone) return;
  if (decision.act == HangDecision::Act::kNotify) {
    if (!watch.told.empty()) return;
    watch.told = decision.reason;
    watch.told_learned = decision.learned;
    watch.stalled_since = decision.stalled_since;
    const char* why = decision.learned ? " (recovery.on_hang: notify)" : "";
    turn.Decide(job, "hang", "warning", absl::StrCat(decision.reason, "; left alone", why));
    return;
  }
  if (!decision.phase.empty()) {
    // Should it have been slowness after all, then it is given more time from here on.
    v1::PhaseRecord& record = PhaseRecordOf(job, decision.phase);
    record.set_doublings(record.doublings() + 1);
    turn.Save(job);
  }
  v1::FailureRecord failure;
  failure.set_kind(v1::FailureRecord::KIND_HANG);
  if (!decision.culprits.empty()) failure.set_rank(decision.culprits.front());
  failure.set_text(decision.reason);
  ForgetLooks(turn, job);
  FailGeneration(turn, job, failure);
}

void JudgeJobHang(Turn& turn, Job& job) {
  HangWatch& watch = job.hang;
  if (job.state() != v1::JOB_STATE_RUNNING || job.nothing_desired) {
    watch.generation = 0;
    watch.stalled = false;
    watch.suspects.clear();
    watch.told.clear();
    return;
  }
  if (watch.generation != job.head().generation()) {
    watch.generation = job.head().generation();
    watch.since = watch.progress_at = turn.now;
  }
  // What all have to say is not known before every host is back.
  if (!job.unconfirmed.empty()) return RestartStallTimer(turn, job);
  if (turn.now - std::max(watch.progress_at, watch.since) < kHangExamineAfter) return EndStall(turn, job);
  CarryOut(turn, job, JudgeHang(turn.now, GatherFacts(turn, job)));
}

// ---- stragglers ----

void JudgeJobStragglers(Turn& turn, Job& job) {
  if (job.state() != v1::JOB_STATE_RUNNING || job.ranks.size() < 2) return;
  if (turn.now - job.hang.stragglers_judged_at < kStragglerInterval) return;
  job.hang.stragglers_judged_at = turn.now;
  std::vector<StragglerFacts> facts;
  facts.reserve(job.ranks.size());
  for (const Rank& rank : job.ranks) {
    facts.push_back({.rank = rank.record.rank(),
                     .host = rank.record.host(),
                     .micro_batch_s = rank.computing.MicroBatchSeconds(),
                     .slow_since = rank.slow_since,
                     .named = rank.straggler});
  }
  std::vector<StragglerChange> changes = JudgeStragglers(turn.now, facts);
  for (size_t i = 0; i < facts.size(); ++i) {
    job.ranks[i].slow_since = facts[i].slow_since;
    job.ranks[i].straggler = facts[i].named;
  }
  for (StragglerChange& change : changes) {
    turn.Decide(job, "straggler", change.named ? "warning" : "info", std::move(change.text));
  }
}

}  // namespace

void NoteStand(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report) {
  NoteProcess(turn, rank, report);
  absl::Time made_at = turn.now - absl::Seconds(std::clamp(report.age_s(), 0.0, 1e6));
  RankStand& stand = rank.stand;
  // What a daemon sends again says nothing new of the trainer itself.
  if (report.phase().empty() || made_at < stand.told_at) return;
  stand.told_at = made_at;
  Learn(turn, job, report, made_at);
  if (report.micro_batches_made() > 0) {
    rank.computing.Add(made_at, report.compute_total_s(), report.micro_batches_made(), report.steps_made());
  }
  stand.phase_s = report.phase_s();
  if (!SameStand(stand, report)) {
    stand.progress_at = turn.now;
    job.hang.progress_at = turn.now;
  }
  stand.phase = CutText(report.phase(), kPhaseBytes);
  stand.last_step = report.last_step();
  stand.communicators.clear();
  for (int i = 0; i < report.communicators_size() && i < static_cast<int>(kCommunicators); ++i) {
    stand.communicators.push_back(Bounded(report.communicators(i)));
  }
}

void NoteExamination(Turn& turn, Rank& rank, const v1::Examination& examination) {
  if (!rank.look.has_value() || rank.look->request_id != examination.request_id()) return;
  constexpr int kFrames = 8;
  v1::Examination kept = examination;
  kept.set_state(examination.state().substr(0, 1));
  kept.set_system_call(CutText(examination.system_call(), kWordBytes));
  while (kept.stack_size() > kFrames) kept.mutable_stack()->RemoveLast();
  for (std::string& frame : *kept.mutable_stack()) frame.resize(std::min(frame.size(), kWordBytes));
  bool first = !rank.look->answer.has_value();
  rank.look->answer = std::move(kept);
  if (first) turn.Push(rank.host());  // it is asked no more
}

void RestartStallTimer(Turn& turn, Job& job) { job.hang.since = turn.now; }

absl::Duration LearnedPhaseLimit(const Job& job, absl::string_view phase) {
  PhaseFacts facts = FactsOf(job, phase);
  return facts.learned_s > 0 ? HangLimit(phase, facts) : absl::InfiniteDuration();
}

void JudgeHangs(Turn& turn) {
  State& state = turn.state;
  std::vector<JobId> active(state.active.begin(), state.active.end());
  for (const JobId& id : active) {
    Job& job = state.jobs.at(id);
    JudgeJobHang(turn, job);
    JudgeJobStragglers(turn, job);
  }
}

}  // namespace trainyard
