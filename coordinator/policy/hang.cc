#include "coordinator/policy/hang.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "coordinator/policy/channel_wait.h"
#include "coordinator/policy/hang_blame.h"
#include "coordinator/policy/report_interval.h"

namespace trainyard {
namespace {

constexpr size_t kMaxPhaseTimes = 64;
constexpr absl::Duration kMinLimit = absl::Seconds(5);
constexpr absl::Duration kMinScriptLimit = absl::Seconds(60);
constexpr int kScriptLimitFactor = 10;
// A script may stop reporting while its process continues; its daemon then repeats the last report. A report
// older than this says nothing about the present state of the script.
constexpr absl::Duration kScriptReportAge = absl::Seconds(5);
// The limit for a phase whose usual duration is not known yet.
constexpr absl::Duration kUnlearnedLimit = absl::Seconds(120);
constexpr uint32_t kMaxDoublings = 6;
// A trainer whose link is closed (its daemon was restarted) reopens the link within a second or two. A trainer that has
// not reported for kLinkPatience counts as silent.
constexpr absl::Duration kLinkPatience = absl::Seconds(30);
// A lossy network delivers data and `go` late, because TCP doubles its retransmission timeout. Dead connections are
// reported by the ranks themselves, usually after 12 to 17 s of silence (worker/collectives/silence_watch.h).
constexpr absl::Duration kNetworkPatience = absl::Seconds(30);
constexpr double kSpinningCpuShare = 0.8;
// On a host with more runnable threads than cores, a spinning process gets only a share of a core, but its state is R.
constexpr double kSpinningCpuShareCrowded = 0.1;
constexpr int kMaxStackFrames = 4;

// "ready" in a running group means that the rank has not reported yet that it has received `go`.
ReportedPhase PhaseOf(const RankPosition& rank) {
  return rank.phase == Phase::kReady ? ReportedPhase(Phase::kFirstStep) : rank.phase;
}

bool IsStopped(const RankPosition& rank) { return rank.process_state == "T"; }
// A user has attached a debugger, so the group must not be restarted.
bool IsTraced(const RankPosition& rank) { return rank.process_state == "t"; }

std::string Seconds(absl::Duration duration) { return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration)); }

class HangAnalysis {
 public:
  HangAnalysis(absl::Time now, const HangFacts& facts) : now_(now), facts_(facts) {
    last_progress_ = facts.since;
    for (const RankPosition& rank : facts.ranks) {
      if (rank.ended) continue;
      alive_.push_back(&rank);
      last_progress_ = std::max(last_progress_, rank.progress_at);
    }
    FindLimit();
  }

  HangDecision Decide() {
    HangDecision decision;
    if (alive_.empty() || now_ - last_progress_ < kHangExamineAfter) return decision;
    Blame blame = FindBlame();
    bool all_known = std::all_of(alive_.begin(), alive_.end(), [this](const RankPosition* r) { return IsKnown(*r); });
    // If a host is unreachable, the rule for lost hosts decides, unless the cause is certain without that host's
    // reports.
    if (!all_known && !blame.stopped_or_silent && !blame.certain) return decision;
    const absl::Time known_until = KnownUntil(blame);
    if (known_until - last_progress_ < kHangExamineAfter) return decision;

    for (const RankPosition* rank : blame.culprits) decision.culprits.push_back(rank->rank);
    absl::Time last_progress = last_progress_;
    if (!blame.stopped_or_silent && !limit_learned_) {
      // In a phase of unknown length, CPU use counts as progress.
      for (const RankPosition* rank : alive_) last_progress = std::max(last_progress, rank->busy_at);
    }
    decision.stalled_since = last_progress;
    const bool awaits_go = std::any_of(blame.culprits.begin(), blame.culprits.end(),
                                       [](const RankPosition* rank) { return rank->phase == Phase::kReady; });
    if (!blame.text.empty() || awaits_go) limit_ = std::max(limit_, kNetworkPatience);
    if (!blame.stopped_or_silent && (known_until - last_progress < limit_ || facts_.examining)) {
      if (known_until - last_progress >= kHangExamineAfter) decision.act = HangDecision::Act::kExamine;
      return decision;
    }
    decision.learned = blame.stopped_or_silent || limit_learned_;
    if (!blame.stopped_or_silent) decision.phase = limit_phase_;
    bool traced = std::any_of(blame.culprits.begin(), blame.culprits.end(), [](const auto* r) { return IsTraced(*r); });
    bool restart = facts_.restart && decision.learned && !traced;
    decision.act = restart ? HangDecision::Act::kRestart : HangDecision::Act::kNotify;
    decision.reason = absl::StrCat(Describe(blame), "; ", DescribeLimit(now_ - last_progress, blame.stopped_or_silent));
    return decision;
  }

 private:
  void FindLimit() {
    limit_ = absl::ZeroDuration();
    for (const RankPosition* rank : alive_) {
      ReportedPhase phase = PhaseOf(*rank);
      auto known = facts_.phases.find(phase);
      PhaseFacts phase_facts = known == facts_.phases.end() ? PhaseFacts() : known->second;
      absl::Duration limit = HangLimit(phase, phase_facts);
      if (limit <= limit_) continue;
      limit_ = limit;
      limit_phase_ = phase;
      limit_learned_ = phase_facts.learned_s > 0;
      learned_s_ = phase_facts.learned_s;
    }
  }

  // Returns whether the rank has reported since the stall began.
  bool IsFresh(const RankPosition& rank) const {
    if (rank.is_script && now_ - rank.reported_at > kScriptReportAge) return false;
    return rank.reachable && rank.reported_at > last_progress_;
  }
  // Returns the time since the rank's last report, but at most the time since the earliest possible start of a stall.
  absl::Duration TimeSinceReport(const RankPosition& rank) const {
    return now_ - std::max(rank.reported_at, facts_.since);
  }
  bool IsSilent(const RankPosition& rank) const {
    absl::Duration since_report = TimeSinceReport(rank);
    return !rank.is_script && rank.reachable && rank.seen_at > last_progress_ &&
           ((rank.silent && since_report >= kHangExamineAfter) || since_report >= kLinkPatience);
  }
  bool IsStoppedOrSilent(const RankPosition& rank) const {
    return rank.reachable && ((IsStopped(rank) && rank.seen_at > last_progress_) || IsSilent(rank));
  }
  bool IsKnown(const RankPosition& rank) const { return IsFresh(rank) || IsStoppedOrSilent(rank); }

  // Returns the time until which all ranks that the conclusion is based on are known to have made no progress. It is
  // earlier than now if the messages of a host are late but its lease has not expired.
  absl::Time KnownUntil(const Blame& blame) const {
    absl::Time until = now_;
    for (const RankPosition* rank : blame.stopped_or_silent ? blame.culprits : alive_) {
      if (IsKnown(*rank)) until = std::min(until, std::max(rank->seen_at, rank->reported_at) + kReportInterval);
    }
    return until;
  }

  Blame FindBlame() const {
    Blame blame;
    std::vector<const RankPosition*> fresh;
    for (const RankPosition* rank : alive_) {
      if (IsStoppedOrSilent(*rank)) {
        blame.culprits.push_back(rank);
      } else if (IsFresh(*rank)) {
        fresh.push_back(rank);
        if (Waiting(*rank) != nullptr) blame.waiting.push_back(rank);
      }
    }
    if (!blame.culprits.empty()) {
      blame.stopped_or_silent = true;
      FindOperation(blame);
      return blame;
    }
    if (blame.waiting.size() < fresh.size()) {
      for (const RankPosition* rank : fresh) {
        if (Waiting(*rank) == nullptr) blame.culprits.push_back(rank);
      }
      blame.certain = !blame.waiting.empty();
      FindOperation(blame);
      return blame;
    }
    FindOperation(blame);
    if (!fresh.empty()) BlameByOperations(fresh, blame);
    return blame;
  }

  std::string Describe(const Blame& blame) const {
    if (!blame.text.empty()) return blame.text;
    if (blame.culprits.empty()) return "no rank makes progress";
    const RankPosition& first = *blame.culprits.front();
    bool one = blame.culprits.size() == 1;
    if (!blame.stopped_or_silent && blame.waiting.empty() && alive_.size() > 1) {
      return absl::StrCat("none of ", alive_.size(),
                          " ranks makes progress and none waits for another: ", RankList(blame.culprits), " ",
                          DescribeState(first, one), " in ", DescribePosition(first));
    }
    std::string text = absl::StrCat(RankList(blame.culprits), " ", DescribeState(first, one));
    if (blame.waiting.empty()) return absl::StrCat(text, " in ", DescribePosition(first));
    if (blame.first_waiting != nullptr && IsChannelWait(Waiting(*blame.first_waiting)->waits_in())) {
      return absl::StrCat(text, DescribeChannel(blame));
    }
    // What a stopped or silent rank did after its last report is unknown.
    const char* has_not = blame.stopped_or_silent
                              ? (one ? " and was not seen to enter " : " and were not seen to enter ")
                              : (one ? " and has not entered " : " and have not entered ");
    absl::StrAppend(&text, has_not, blame.operation, " of ", DescribePosition(*blame.waiting.front()), ", in which ",
                    Plural(blame.waiting.size(), "rank waits", "ranks wait"));
    return text;
  }

  static std::string DescribeChannel(const Blame& blame) {
    const RankPosition& waiting = *blame.first_waiting;
    const v1::CommunicatorReport& channel = *Waiting(waiting);
    const size_t others = blame.waiting.size() - 1;
    return absl::StrCat(
        "; rank ", waiting.rank, " on ", waiting.host, WaitVerb(channel), channel.waits_in(), " of ", channel.name(),
        " in ", DescribePosition(waiting),
        others > 0 ? absl::StrCat(", and ", Plural(others, "other rank waits", "other ranks wait"), " too") : "");
  }

  std::string DescribeState(const RankPosition& rank, bool one) const {
    const char* is = one ? "is " : "are ";
    if (IsStopped(rank)) return absl::StrCat(is, "stopped (SIGSTOP, state T)");
    if (IsTraced(rank)) return absl::StrCat(is, "held by a debugger (state t)");
    std::string state = rank.examination != nullptr ? rank.examination->state() : rank.process_state;
    std::string in_state = state.empty() ? "" : absl::StrCat(", state ", state);
    if (IsStoppedOrSilent(rank)) {
      return absl::StrCat(one ? "has" : "have", " sent no report for ", Seconds(TimeSinceReport(rank)),
                          state.empty() ? "" : absl::StrCat(" (state ", state, ")"));
    }
    if (const v1::CommunicatorReport* waits = Waiting(rank); waits != nullptr) {
      return absl::StrCat(one ? "waits in " : "wait in ", waits->waits_in());
    }
    std::string stack = DescribeStack(rank);
    if (rank.examination == nullptr) return absl::StrCat(one ? "makes" : "make", " no progress", stack);
    const v1::Examination& examination = *rank.examination;
    bool runs = examination.state() == "R" && examination.system_call().empty();
    if (examination.cpu_share() > (runs ? kSpinningCpuShareCrowded : kSpinningCpuShare)) {
      return absl::StrCat(is, absl::StrFormat("spinning (CPU share %.2f%s)", examination.cpu_share(), in_state));
    }
    if (!examination.system_call().empty()) {
      return absl::StrCat(is, "blocked in the system call ", examination.system_call(),
                          state.empty() ? "" : absl::StrCat(" (state ", state, ")"), stack);
    }
    return absl::StrCat(one ? "makes" : "make", " no progress",
                        absl::StrFormat(" (CPU share %.2f%s)", examination.cpu_share(), in_state), stack);
  }

  static std::string DescribeStack(const RankPosition& rank) {
    if (rank.examination == nullptr || rank.examination->stack().empty()) return "";
    const auto& stack = rank.examination->stack();
    return absl::StrCat(
        " [", absl::StrJoin(stack.begin(), stack.begin() + std::min(kMaxStackFrames, stack.size()), " < "), "]");
  }

  std::string DescribeLimit(absl::Duration stalled, bool stopped_or_silent) const {
    std::string text = absl::StrCat("no progress for ", Seconds(stalled));
    if (stopped_or_silent) return text;
    if (!limit_learned_) {
      return absl::StrCat(text, ", and no process uses the CPU; the usual duration of ", limit_phase_.name(),
                          " is not known yet (limit ", Seconds(limit_), ")");
    }
    return absl::StrCat(text, " (limit ", Seconds(limit_), "; the longest recent ",
                        limit_phase_ == Phase::kTrain ? "step" : limit_phase_.name(), " took ",
                        absl::StrFormat("%.2f s", learned_s_), ")");
  }

  const absl::Time now_;
  const HangFacts& facts_;
  std::vector<const RankPosition*> alive_;
  absl::Time last_progress_;  // when any rank last made progress; `since` if none has
  absl::Duration limit_;
  ReportedPhase limit_phase_;
  bool limit_learned_ = false;
  double learned_s_ = 0;
};

}  // namespace

void PhaseTimes::Add(uint64_t step, double seconds) {
  // Ranks report the end of the same step one after another.
  if (!times_.empty() && step <= times_.back().first) {
    times_.back().second = std::max(times_.back().second, seconds);
  } else {
    times_.emplace_back(step, seconds);
    if (times_.size() > kMaxPhaseTimes) times_.pop_front();
  }
  longest_ = 0;
  for (const auto& [at_step, duration] : times_) longest_ = std::max(longest_, duration);
}

absl::Duration HangLimit(const ReportedPhase& phase, const PhaseFacts& facts) {
  absl::Duration learned = absl::Seconds(facts.learned_s);
  absl::Duration limit = facts.learned_s <= 0     ? kUnlearnedLimit
                         : facts.is_script        ? std::max(kMinScriptLimit, kScriptLimitFactor * learned)
                         : phase == Phase::kTrain ? std::max(kMinLimit, 2 * learned)
                                                  : 3 * learned + kMinLimit;
  return limit * (int64_t{1} << std::min(facts.doublings, kMaxDoublings));
}

HangDecision DecideHang(absl::Time now, const HangFacts& facts) { return HangAnalysis(now, facts).Decide(); }

}  // namespace trainyard
