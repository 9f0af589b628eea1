#include "coordinator/policy/hang.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "coordinator/policy/report_interval.h"

namespace trainyard {
namespace {

constexpr size_t kMaxPhaseTimes = 64;
constexpr absl::Duration kMinLimit = absl::Seconds(5);
// The limit for a phase whose usual duration is not known yet.
constexpr absl::Duration kUnlearnedLimit = absl::Seconds(120);
constexpr uint32_t kMaxDoublings = 6;
// A trainer whose link is closed (its daemon was restarted) reopens it within a second or two; after this time it
// counts as silent.
constexpr absl::Duration kLinkPatience = absl::Seconds(30);
// A lossy network delivers data late, because TCP doubles its retransmission timeout. Dead connections are reported by
// the ranks themselves, which detect 15 s of silence.
constexpr absl::Duration kNetworkPatience = absl::Seconds(30);
constexpr double kSpinningCpuShare = 0.8;
// On a host with more runnable threads than cores, a spinning process gets only a share of a core, but its state is R.
constexpr double kSpinningCpuShareCrowded = 0.1;
constexpr size_t kMaxListed = 3;  // ranks or hosts in a sentence
constexpr int kMaxStackFrames = 4;

// "ready" in a running group means that the rank has not received `go` yet, or makes its first step.
ReportedPhase PhaseOf(const RankPosition& rank) {
  return rank.phase == Phase::kReady ? ReportedPhase(Phase::kFirstStep) : rank.phase;
}

bool IsStopped(const RankPosition& rank) { return rank.process_state == "T"; }
// A user has attached a debugger, so the group must not be restarted.
bool IsTraced(const RankPosition& rank) { return rank.process_state == "t"; }

const v1::CommunicatorReport* Waiting(const RankPosition& rank) {
  for (const v1::CommunicatorReport& communicator : rank.communicators) {
    if (!communicator.waits_in().empty()) return &communicator;
  }
  return nullptr;
}

std::string Seconds(absl::Duration duration) { return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration)); }

// The ranks that the others wait for, and the operation.
struct Blame {
  std::vector<const RankPosition*> culprits;
  bool stopped_or_silent = false;  // all culprits are
  bool certain = false;            // holds, no matter what unreachable ranks would report
  std::vector<const RankPosition*> waiting;
  std::string operation;  // the one that the waiting ranks have entered
  std::string mismatch;   // the one that the culprits have entered instead; empty: none
  std::string text;       // the complete description; empty: Describe composes one
};

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
    if (!blame.text.empty()) limit_ = std::max(limit_, kNetworkPatience);
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
  bool IsFresh(const RankPosition& rank) const { return rank.reachable && rank.reported_at > last_progress_; }
  // Returns the time since the rank's last report, but at most the time since the earliest start of a stall.
  absl::Duration TimeSinceReport(const RankPosition& rank) const {
    return now_ - std::max(rank.reported_at, facts_.since);
  }
  bool IsSilent(const RankPosition& rank) const {
    absl::Duration since_report = TimeSinceReport(rank);
    return rank.reachable && rank.seen_at > last_progress_ &&
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
    blame.operation = NewestWaitedFor(blame.waiting);
    if (!blame.culprits.empty()) {
      blame.stopped_or_silent = true;
      return blame;
    }
    if (blame.waiting.size() < fresh.size()) {
      for (const RankPosition* rank : fresh) {
        if (Waiting(*rank) == nullptr) blame.culprits.push_back(rank);
      }
      blame.certain = !blame.waiting.empty();
      return blame;
    }
    if (!fresh.empty()) CompareOperations(fresh, blame);
    return blame;
  }

  static std::string NewestWaitedFor(const std::vector<const RankPosition*>& waiting) {
    std::string operation;
    uint64_t newest = 0;
    for (const RankPosition* rank : waiting) {
      const v1::CommunicatorReport* communicator = Waiting(*rank);
      if (!operation.empty() && communicator->started() <= newest) continue;
      newest = communicator->started();
      operation = communicator->waits_in();
    }
    return operation;
  }

  // All ranks wait, in one communicator or in several. A rank that has started fewer operations than the others in a
  // communicator in which a rank waits has skipped an operation or not reached it yet. A rank that itself waits for
  // such a rank is not blamed.
  void CompareOperations(const std::vector<const RankPosition*>& fresh, Blame& blame) const {
    std::map<std::string, uint64_t> newest;
    for (const RankPosition* rank : fresh) newest[Waiting(*rank)->name()];
    for (const RankPosition* rank : fresh) {
      for (const v1::CommunicatorReport& communicator : rank->communicators) {
        auto known = newest.find(communicator.name());
        if (known != newest.end()) known->second = std::max(known->second, communicator.started());
      }
    }
    std::map<std::string, std::vector<const RankPosition*>> behind;  // by communicator
    for (const RankPosition* rank : fresh) {
      for (const v1::CommunicatorReport& communicator : rank->communicators) {
        auto known = newest.find(communicator.name());
        if (known != newest.end() && communicator.started() < known->second) behind[known->first].push_back(rank);
      }
    }
    std::set<std::string> held_up;  // communicators in which a culprit is behind
    for (const RankPosition* rank : fresh) {
      const std::string& own = Waiting(*rank)->name();
      bool is_behind = false, waits_for_another = behind.contains(own);
      for (const auto& [name, ranks] : behind) {
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        is_behind = true;
        if (name == own) waits_for_another = false;
      }
      if (!is_behind || waits_for_another) continue;
      blame.culprits.push_back(rank);
      for (const auto& [name, ranks] : behind) {
        if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) held_up.insert(name);
      }
    }
    if (!blame.culprits.empty()) {
      std::erase_if(blame.waiting, [&](const RankPosition* rank) {
        return !held_up.contains(Waiting(*rank)->name()) ||
               std::find(blame.culprits.begin(), blame.culprits.end(), rank) != blame.culprits.end();
      });
      blame.operation = NewestWaitedFor(blame.waiting);
      blame.mismatch = Waiting(*blame.culprits.front())->waits_in();
      DescribeUndelivered(fresh, blame);
      return;
    }
    CompareNames(fresh, blame);
  }

  // If another rank has completed the operation in which a culprit waits, the culprit is not at fault: it has entered
  // the operation too, and waits only for data that the network has not delivered yet.
  static void DescribeUndelivered(const std::vector<const RankPosition*>& fresh, Blame& blame) {
    for (const RankPosition* culprit : blame.culprits) {
      const v1::CommunicatorReport& own = *Waiting(*culprit);
      const bool others_completed = std::any_of(fresh.begin(), fresh.end(), [&](const RankPosition* rank) {
        return std::any_of(rank->communicators.begin(), rank->communicators.end(), [&](const auto& other) {
          return other.name() == own.name() && other.completed() > own.completed();
        });
      });
      if (!others_completed) return;
    }
    const RankPosition& first = *blame.culprits.front();
    blame.text = absl::StrCat(RankList(blame.culprits), blame.culprits.size() == 1 ? " waits" : " wait", " in ",
                              blame.mismatch, " of ", DescribePosition(first),
                              ", which other ranks have completed: data for it does not arrive over the network at ",
                              first.host);
    blame.culprits.clear();
  }

  // All ranks have started equally many operations: a rank that entered a different operation under the same number is
  // wrong.
  void CompareNames(const std::vector<const RankPosition*>& fresh, Blame& blame) const {
    std::map<std::string, std::map<std::string, std::vector<const RankPosition*>>> by_communicator;
    for (const RankPosition* rank : fresh) {
      const v1::CommunicatorReport& communicator = *Waiting(*rank);
      by_communicator[communicator.name()][communicator.last_started()].push_back(rank);
    }
    for (const auto& [name, by_operation] : by_communicator) {
      if (by_operation.size() > 1) return BlameMinority(by_operation, blame);
    }
    std::set<std::string> hosts;
    for (const RankPosition* rank : fresh) hosts.insert(rank->host);
    std::vector<std::string> names(hosts.begin(), hosts.end());
    const size_t shown = names.size() > kMaxListed + 1 ? kMaxListed : names.size();
    blame.text = absl::StrCat(
        "all ", fresh.size(), " ranks are inside ", blame.operation, " of ", DescribePosition(*fresh.front()),
        ", and none of them is stopped: data between ",
        names.size() == 1 ? absl::StrCat("the ranks on ", names.front()) : JoinFirst(names, shown, " and "),
        " does not arrive over the network");
  }

  static void BlameMinority(const std::map<std::string, std::vector<const RankPosition*>>& by_operation, Blame& blame) {
    // The majority is correct; in a tie, the side with the lowest rank.
    auto majority = std::max_element(by_operation.begin(), by_operation.end(), [](const auto& a, const auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
      return a.second.front()->rank > b.second.front()->rank;
    });
    blame.waiting = majority->second;
    blame.operation = majority->first;
    for (const auto& [operation, ranks] : by_operation) {
      if (operation == majority->first) continue;
      if (blame.mismatch.empty()) blame.mismatch = operation;
      blame.culprits.insert(blame.culprits.end(), ranks.begin(), ranks.end());
    }
    std::sort(blame.culprits.begin(), blame.culprits.end(),
              [](const RankPosition* a, const RankPosition* b) { return a->rank < b->rank; });
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
    // What a stopped or silent rank did after its last report is unknown.
    const char* has_not = blame.stopped_or_silent
                              ? (one ? " and was not seen to enter " : " and were not seen to enter ")
                              : (one ? " and has not entered " : " and have not entered ");
    absl::StrAppend(&text, has_not, blame.operation, " of ", DescribePosition(*blame.waiting.front()), ", in which ",
                    Plural(blame.waiting.size(), "rank waits", "ranks wait"));
    return text;
  }

  static std::string RankList(const std::vector<const RankPosition*>& ranks) {
    std::vector<std::string> names;
    for (const RankPosition* rank : ranks) names.push_back(absl::StrCat(rank->rank, " on ", rank->host));
    return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", JoinFirst(names, kMaxListed));
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

  static std::string DescribePosition(const RankPosition& rank) {
    if (rank.phase == Phase::kEvaluate) return absl::StrCat("the evaluation after step ", rank.last_step);
    if (rank.phase == Phase::kSave) return absl::StrCat("the save after step ", rank.last_step);
    if (rank.phase == Phase::kLeaving) return absl::StrCat("the end after step ", rank.last_step);
    return absl::StrCat("step ", rank.last_step + 1);
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
                         : phase == Phase::kTrain ? std::max(kMinLimit, 2 * learned)
                                                  : 3 * learned + kMinLimit;
  return limit * (int64_t{1} << std::min(facts.doublings, kMaxDoublings));
}

HangDecision DecideHang(absl::Time now, const HangFacts& facts) { return HangAnalysis(now, facts).Decide(); }

}  // namespace trainyard
