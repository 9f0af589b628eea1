#include "coordinator/handlers/hangs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/last_save.h"
#include "coordinator/handlers/rank_progress.h"
#include "coordinator/policy/hang.h"

namespace trainyard {
namespace {

constexpr size_t kExaminedBytes = 128;

PhaseFacts FactsOf(const Job& job, const ReportedPhase& phase) {
  PhaseFacts facts;
  facts.is_script = job.head().spec().has_command();
  if (const std::optional<Phase> known = phase.known()) {
    auto times = job.phase_times.find(*known);
    if (times != job.phase_times.end()) facts.learned_s = times->second.longest();
  }
  for (const v1::PhaseRecord& record : job.record.phases()) {
    if (record.phase() != phase.name()) continue;
    facts.doublings = record.doublings();
    // An earlier coordinator process learned this duration.
    if (facts.learned_s == 0) facts.learned_s = record.learned_s();
  }
  return facts;
}

// A script that has made no step yet may still prepare, for which there is no time limit.
bool HasReported(const Rank& rank) { return rank.position.last_step > 0; }

HangFacts GatherFacts(const Turn& turn, const Job& job) {
  HangFacts facts;
  facts.since = job.current.hang.since;
  facts.restart = job.head().spec().recovery().on_hang() != v1::ON_HANG_NOTIFY;
  const bool is_script = job.head().spec().has_command();
  for (const Rank& rank : job.ranks) {
    // A script need not report its steps on every rank.
    if (is_script && !HasReported(rank)) continue;
    RankPosition position = rank.position;
    position.is_script = is_script;
    position.rank = rank.record.rank();
    position.host = rank.record.host();
    auto host = turn.state.hosts.find(rank.host());
    position.reachable = host != turn.state.hosts.end() && host->second.reachable && host->second.attached();
    position.ended = rank.ended() || rank.record.finished() || position.phase == Phase::kEnded;
    if (rank.examination.has_value()) {
      if (rank.examination->answer.has_value()) position.examination = &*rank.examination->answer;
      if (!rank.examination->answer.has_value() && turn.now - rank.examination->requested_at < kExaminationWait)
        facts.examining = true;
    }
    // A rank that is ready makes its first step next.
    const bool ready = position.phase == Phase::kReady;
    auto [phase, is_new] = facts.phases.try_emplace(ready ? ReportedPhase(Phase::kFirstStep) : position.phase);
    if (is_new) phase->second = FactsOf(job, phase->first);
    facts.ranks.push_back(std::move(position));
  }
  return facts;
}

// `with_stack`: only for processes that will be ended anyway, because reading the stack interrupts them.
void RequestExaminations(Turn& turn, Job& job, const std::vector<uint32_t>& culprits, bool with_stack) {
  constexpr size_t kMaxExamined = 4;
  for (size_t i = 0; i < culprits.size() && i < kMaxExamined; ++i) {
    Rank& rank = job.ranks[culprits[i]];
    auto host = turn.state.hosts.find(rank.host());
    const bool can_answer = host != turn.state.hosts.end() && host->second.attached() && host->second.reachable;
    // A stopped process cannot report its stack, and its state explains the hang.
    const bool stack_is_available = can_answer && !rank.ended() && rank.position.process_state != "T";
    if (rank.examination.has_value() || (with_stack && !stack_is_available)) continue;
    rank.examination = ExaminationCall{
        .request_id = absl::StrCat(job.id.value(), ".g", job.head().generation(), ".r", rank.record.rank(), ".",
                                   absl::ToUnixMillis(turn.now), with_stack ? ".stack" : ""),
        .requested_at = turn.now,
        .with_stack = with_stack,
        .answer = std::nullopt};
    turn.Push(rank.host());
  }
}

void ForgetExaminations(Turn& turn, Job& job) {
  for (Rank& rank : job.ranks) {
    if (!rank.examination.has_value()) continue;
    rank.examination.reset();
    turn.Push(rank.host());
  }
}

// Called when the ranks make progress: a published stall is over.
void EndStall(Turn& turn, Job& job) {
  HangWatch& watch = job.current.hang;
  if (!watch.stalled) return;
  watch.stalled = false;
  watch.suspects.clear();
  ForgetExaminations(turn, job);
  if (watch.published.empty()) return;
  turn.Decide(job, DecisionRule::kHang, NoticeLevel::kInfo,
              absl::StrCat("the ranks continue after ",
                           absl::FormatDuration(absl::Trunc(turn.now - watch.stalled_since, absl::Milliseconds(100))),
                           "; the reported stall: ", watch.published));
  // The duration of a stall that a learned time or a stopped process has proved is not learned, because it is not a
  // duration of the phase. Without such a proof the phase may only have taken long, so its duration is learned.
  if (watch.published_is_learned) job.unlearned_until = turn.now;
  watch.published.clear();
}

void CarryOut(Turn& turn, Job& job, const HangDecision& decision) {
  HangWatch& watch = job.current.hang;
  watch.stalled = true;
  watch.suspects.clear();
  watch.suspects.insert(decision.culprits.begin(), decision.culprits.end());
  if (decision.act == HangDecision::Act::kExamine) {
    return RequestExaminations(turn, job, decision.culprits, /*with_stack=*/false);
  }
  if (decision.act == HangDecision::Act::kNone) return;
  if (decision.act == HangDecision::Act::kNotify) {
    if (!watch.published.empty()) return;
    watch.published = decision.reason;
    // If a script was only slow, the length of its pause is learned: it may pause as long each time that it evaluates.
    const bool script_was_slow = job.head().spec().has_command() && !decision.phase.name().empty();
    watch.published_is_learned = decision.learned && !script_was_slow;
    watch.stalled_since = decision.stalled_since;
    const bool only_notifies = job.head().spec().recovery().on_hang() == v1::ON_HANG_NOTIFY;
    // Without `notify`, a rank that is known to hang is left running only if a debugger is attached to it.
    const char* why = !decision.learned ? "" : only_notifies ? " (recovery.on_hang: notify)" : " for the debugger";
    turn.Decide(job, DecisionRule::kHang, NoticeLevel::kWarning,
                absl::StrCat(decision.reason, "; the job is left running", why));
    return;
  }
  if (!decision.phase.name().empty()) {
    // If the phase was only slow, its doubled limit prevents a second restart.
    v1::PhaseRecord& record = PhaseRecordOf(job, decision.phase.name());
    record.set_doublings(record.doublings() + 1);
    turn.Save(job);
  }
  v1::FailureRecord failure;
  failure.set_kind(v1::FailureRecord::KIND_HANG);
  if (!decision.culprits.empty()) failure.set_rank(decision.culprits.front());
  failure.set_text(decision.reason);
  ForgetExaminations(turn, job);
  // The signal that requests a stack would end a program that does not handle it.
  if (!job.head().spec().has_command()) RequestExaminations(turn, job, decision.culprits, /*with_stack=*/true);
  FailGeneration(turn, job, failure);
}

// Returns how long a group may make no progress while the last save is tried again: the longest pause between two tries
// plus the time limit of a save.
absl::Duration LastSaveLimit(const Job& job) {
  return absl::Seconds(30) + absl::Seconds(job.head().spec().checkpoint().timeout_s());
}

// Publishes the stack of a rank that hung, for `trainctl why`, and ends the group, which waited for the stack.
void PublishStack(Turn& turn, Job& job, const Rank& rank) {
  const v1::Examination& examination = *rank.examination->answer;
  const std::string who = absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host());
  std::string text;
  if (examination.stack().empty()) {
    text = absl::StrCat("no stack of ", who, ": ", CutText(examination.stack_note(), kExaminedBytes * 2));
  } else {
    text =
        absl::StrCat("stack of ", who, examination.stack_note().empty() ? "" : " (",
                     CutText(examination.stack_note(), kExaminedBytes), examination.stack_note().empty() ? ":" : "):");
    for (const std::string& frame : examination.stack()) absl::StrAppend(&text, "\n  ", frame);
  }
  turn.Decide(job, DecisionRule::kHang, NoticeLevel::kInfo, std::move(text));
  if (job.state() == v1::JOB_STATE_RECOVERING || job.state() == v1::JOB_STATE_STOPPING) {
    if (job.record.failure().kind() == v1::FailureRecord::KIND_HANG && !AwaitsStacks(job)) DropTrainers(turn, job);
  }
}

}  // namespace

void RecordExamination(Turn& turn, Job& job, Rank& rank, const v1::Examination& examination) {
  if (!rank.examination.has_value() || rank.examination->request_id != examination.request_id()) return;
  const int max_frames = rank.examination->with_stack ? 32 : 8;
  v1::Examination kept = examination;
  kept.set_state(examination.state().substr(0, 1));
  kept.set_system_call(CutText(examination.system_call(), kExaminedBytes));
  while (kept.stack_size() > max_frames) kept.mutable_stack()->RemoveLast();
  for (std::string& frame : *kept.mutable_stack()) frame = CutText(frame, kExaminedBytes);
  bool first = !rank.examination->answer.has_value();
  rank.examination->answer = std::move(kept);
  if (!first) return;
  turn.Push(rank.host());  // the request leaves the desired state
  if (rank.examination->with_stack) PublishStack(turn, job, rank);
}

bool AwaitsStacks(const Job& job) {
  return job.record.failure().kind() == v1::FailureRecord::KIND_HANG &&
         std::any_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) {
           return rank.examination.has_value() && rank.examination->with_stack &&
                  !rank.examination->answer.has_value() && !rank.ended();
         });
}

void RestartStallTimer(Turn& turn, Job& job) { job.current.hang.since = turn.now; }

absl::Duration LearnedPhaseLimit(const Job& job, const ReportedPhase& phase) {
  PhaseFacts facts = FactsOf(job, phase);
  return facts.learned_s > 0 ? HangLimit(phase, facts) : absl::InfiniteDuration();
}

void CheckHang(Turn& turn, Job& job) {
  HangWatch& watch = job.current.hang;
  // A program that reports no steps is not watched.
  const bool is_watched =
      job.state() == v1::JOB_STATE_RUNNING &&
      (!job.head().spec().has_command() || std::any_of(job.ranks.begin(), job.ranks.end(), HasReported));
  if (!is_watched || job.current.nothing_desired || job.held_at != 0) {
    watch.generation = 0;
    watch.stalled = false;
    watch.suspects.clear();
    watch.published.clear();
    return;
  }
  if (watch.generation != job.head().generation()) {
    watch.generation = job.head().generation();
    watch.since = watch.progress_at = turn.now;
  }
  // The positions of all ranks are known only when every host has attached again.
  if (!job.current.unconfirmed.empty()) return RestartStallTimer(turn, job);
  const absl::Duration stalled_for = turn.now - std::max(watch.progress_at, watch.since);
  if (stalled_for < kHangExamineAfter) return EndStall(turn, job);
  // Between two tries of the last save the ranks wait, and a failing disk is slow: this is no hang.
  if (stalled_for < LastSaveLimit(job) && LastSaveIsRetried(job)) return EndStall(turn, job);
  CarryOut(turn, job, DecideHang(turn.now, GatherFacts(turn, job)));
}

}  // namespace trainyard
