#include "coordinator/policy/queue.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "coordinator/policy/queue_quota.h"
#include "coordinator/policy/victims.h"

namespace trainyard {
namespace {

// After this many jobs of a pass have found no victims, the jobs further behind in the queue do not look for any: they
// may preempt even fewer jobs.
constexpr int kVainSearches = 32;
constexpr size_t kNamed = 2;  // a reason names at most this many protected jobs

std::string Waited(const WaitingJob& job) { return absl::FormatDuration(absl::Trunc(job.waited, absl::Seconds(1))); }

// `names`: the jobs that end for this one.
std::string WaitsForEnds(const std::vector<std::string>& names, const WaitingJob& job) {
  return absl::StrCat("waits for ", JoinFirst(names, 3), ", which ",
                      names.size() == 1 ? "saves and ends" : "save and end", " for this job of priority ",
                      job.priority);
}

// What decides whether a job fits, apart from the choice of hosts.
using Demand = std::tuple<uint32_t, uint32_t, bool, uint32_t, bool, bool>;

Demand DemandOf(const PlacementFacts& facts) {
  return {MinRanks(facts), facts.group, facts.one_group_per_host, facts.cpus, facts.needs_gpu, facts.one_version};
}

bool HasOwnHosts(const PlacementFacts& facts) {
  return !facts.allowed.empty() || !facts.excluded.empty() || !facts.avoided.empty();
}

class Pass {
 public:
  explicit Pass(const QueueFacts& facts)
      : facts_(facts),
        rules_(*facts.rules),
        hosts_(facts.hosts.begin(), facts.hosts.end()),
        open_(hosts_),
        future_(hosts_),
        use_(facts.use),
        reasons_left_(facts.reasons),
        reasons_to_skip_(facts.reasons_skipped) {
    for (size_t i = 0; i < hosts_.size(); ++i) index_[hosts_[i].name] = i;
    for (const RunningJob& job : facts.running) {
      if (!job.ending) continue;
      Free(future_, job.ranks, job.cpus);
      any_ending_ = true;
    }
  }

  std::vector<QueueOutcome> Run() {
    std::vector<QueueOutcome> outcomes;
    for (size_t index : OrderQueue(facts_)) {
      outcomes.push_back(Decide(facts_.waiting[index]));
      outcomes.back().waiting = index;
    }
    return outcomes;
  }

 private:
  using Hosts = std::vector<HostSlots>;

  void Free(Hosts& hosts, const RanksByHost& ranks, uint32_t cpus) {
    for (const auto& [name, count] : ranks) {
      const auto at = index_.find(name);
      if (at != index_.end()) FreeRanks(hosts[at->second], count, cpus);
    }
  }
  void Take(Hosts& hosts, const RanksByHost& ranks, uint32_t cpus) {
    for (const auto& [name, count] : ranks) {
      const auto at = index_.find(name);
      if (at != index_.end()) TakeRanks(hosts[at->second], count, cpus);
    }
  }

  static PlacementFacts On(const Hosts& hosts, PlacementFacts facts) {
    facts.hosts = hosts;
    return facts;
  }

  bool IsOverdue(const WaitingJob& job) const { return job.waited >= rules_.overtake; }

  QueueOutcome Decide(const WaitingJob& job) {
    gives_reason_ = job.wants_reason && reasons_left_ > 0 && reasons_to_skip_ == 0;
    if (job.wants_reason && reasons_to_skip_ > 0) --reasons_to_skip_;
    if (!job.not_yet.empty()) return Wait(WaitCause::kDelay, job.not_yet);
    const QuotaDecision quota = DecideQuota(rules_, use_[job.pool], job);
    PlacementFacts wanted = job.placement;
    wanted.min_ranks = MinRanks(job.placement);
    if (quota.ranks > 0) wanted.ranks = quota.ranks;
    for (Hosts* hosts : {&hosts_, &open_, &future_}) Free(*hosts, job.kept, job.placement.cpus);
    QueueOutcome outcome = quota.ranks == 0 ? WaitForQuota(job, wanted, quota) : Place(job, wanted);
    if (!outcome.start.has_value()) {
      for (Hosts* hosts : {&hosts_, &open_, &future_}) Take(*hosts, job.kept, job.placement.cpus);
    }
    return outcome;
  }

  QueueOutcome WaitForQuota(const WaitingJob& job, const PlacementFacts& wanted, const QuotaDecision& quota) {
    if (!quota.never) {
      if (std::optional<QueueOutcome> preempts = Preempt(job, wanted)) return *std::move(preempts);
      if (job.is_preempting) return WaitForVictims(job, wanted);
    }
    QueueOutcome outcome =
        Wait(WaitCause::kQuota, quota.never ? absl::StrCat(quota.reason, ": it can never start") : quota.reason);
    AddProtections(job, outcome);
    // No new job of the namespace starts before it: small ones would use up the quota that a large one waits for.
    if (IsOverdue(job) && !quota.never) closed_pools_.emplace(job.pool, &job);
    return outcome;
  }

  QueueOutcome Place(const WaitingJob& job, const PlacementFacts& wanted) {
    if (const WaitingJob* ahead = PoolClosedFor(job); ahead != nullptr) {
      return WaitBehind(*ahead, absl::StrCat("the quota of its namespace is kept for job ", ahead->id.value(),
                                             ", which has waited for ", Waited(*ahead)));
    }
    if (closed_by_ != nullptr && !job.continues) {
      return WaitBehind(*closed_by_, absl::StrCat("job ", closed_by_->id.value(), " is ahead of it, and the hosts of ",
                                                  "the cluster are still connecting"));
    }
    if (Fits(hosts_, failed_, job, wanted)) return Start(job, wanted);
    return WaitForSlots(job, wanted);
  }

  void ForgetFailed() {
    for (std::set<Demand>* failed : {&failed_, &failed_open_, &failed_later_}) failed->clear();
  }

  // Whether the job fits on these hosts. `failed` has the demands that are known not to fit there; the jobs of a
  // long queue have few different demands.
  static bool Fits(const Hosts& hosts, std::set<Demand>& failed, const WaitingJob& job, const PlacementFacts& wanted) {
    const bool is_common = job.kept.empty() && !HasOwnHosts(wanted);
    if (is_common && failed.contains(DemandOf(wanted))) return false;
    if (RanksThatFit(On(hosts, wanted)) > 0) return true;
    if (is_common) failed.insert(DemandOf(wanted));
    return false;
  }

  QueueOutcome Start(const WaitingJob& job, const PlacementFacts& wanted) {
    PlacementDecision decision = DecidePlacement(On(hosts_, wanted));
    QueueOutcome outcome;
    for (Hosts* hosts : {&hosts_, &open_, &future_}) Take(*hosts, *decision.ranks_by_host, job.placement.cpus);
    for (const auto& [name, count] : *decision.ranks_by_host) {
      std::string& busy = hosts_[index_.at(name)].busy_with;
      absl::StrAppend(&busy, busy.empty() ? "" : ", ", "job ", job.id.value());
    }
    AddStart(use_[job.pool], job, CountRanks(*decision.ranks_by_host));
    if (!job.kept.empty()) ForgetFailed();  // it may have freed some of the slots that were kept for it
    outcome.start = std::move(decision.ranks_by_host);
    outcome.reason = std::move(decision.reason);
    return outcome;
  }

  QueueOutcome WaitForSlots(const WaitingJob& job, const PlacementFacts& wanted) {
    const WaitingJob* ahead = ReservedFor(job, wanted);
    const bool fits_later = Fits(future_, failed_later_, job, wanted);
    if (ahead == nullptr && fits_later && any_ending_ && (job.is_preempting || MayEverPreempt(job))) {
      if (job.is_preempting) return WaitForVictims(job, wanted);
      // The slots that become free anyway suffice, so no other job ends for it.
      QueueOutcome outcome = Wait(WaitCause::kSlots, ReasonOfPlacement(wanted));
      Reserve(job, wanted, "which waits for jobs that are ending");
      TakeLater(job, wanted);
      return outcome;
    }
    if (!fits_later) {
      if (std::optional<QueueOutcome> preempts = Preempt(job, wanted)) return *std::move(preempts);
    }
    QueueOutcome outcome;
    if (ahead != nullptr) {
      outcome = WaitBehind(*ahead, ReasonOfPlacement(wanted));
    } else {
      outcome = Wait(WaitCause::kSlots, ReasonOfPlacement(wanted));
      AddProtections(job, outcome);
    }
    if (IsOverdue(job)) {
      Reserve(job, wanted, absl::StrCat("which has waited for ", Waited(job)));
      // A job behind this one that looks for victims must not count the slots of this one.
      Block(future_, wanted, "reserved");
    }
    return outcome;
  }

  // REQUIRES: jobs are ending for this one.
  QueueOutcome WaitForVictims(const WaitingJob& job, const PlacementFacts& wanted) {
    std::vector<std::string> names;
    for (const JobId& id : job.victims) names.push_back(absl::StrCat("job ", id.value()));
    QueueOutcome outcome = Wait(WaitCause::kPreemption, WaitsForEnds(names, job));
    outcome.waits_for = job.victims;
    Reserve(job, wanted, "for which other jobs end");
    TakeLater(job, wanted);
    return outcome;
  }

  bool MayEverPreempt(const WaitingJob& job) const { return rules_.preemption && RulesOf(rules_, job.pool).preempts; }

  std::optional<QueueOutcome> Preempt(const WaitingJob& job, const PlacementFacts& wanted) {
    if (!MayEverPreempt(job) || !facts_.settled || !facts_.may_preempt || vain_searches_ >= kVainSearches) {
      return std::nullopt;
    }
    WaitingJob limited = job;
    limited.placement = wanted;
    limited.placement.ranks = wanted.min_ranks;  // to start, it needs no more
    std::vector<const RunningJob*> running;
    for (const RunningJob& other : facts_.running) {
      if (!victims_.contains(other.id)) running.push_back(&other);
    }
    const std::vector<const RunningJob*> chosen = ChooseVictims(
        {.rules = &rules_, .job = &limited, .use = UseLater(job.pool), .hosts = future_, .running = running});
    if (chosen.empty()) {
      ++vain_searches_;
      return std::nullopt;
    }
    QueueOutcome outcome;
    outcome.cause = WaitCause::kPreemption;
    std::vector<std::string> names;
    for (const RunningJob* victim : chosen) {
      victims_.insert(victim->id);
      outcome.preempt.push_back(victim->id);
      names.push_back(absl::StrCat("job ", victim->id.value(), " (priority ", victim->priority, ")"));
      Free(future_, victim->ranks, victim->cpus);
      failed_later_.clear();
      any_ending_ = true;
    }
    outcome.waits_for = outcome.preempt;
    outcome.reason = WaitsForEnds(names, job);
    Reserve(job, wanted, "for which other jobs end");
    TakeLater(job, limited.placement);
    return outcome;
  }

  // The use of a pool once the jobs that are ending have ended.
  PoolUse UseLater(const std::string& pool) const {
    const auto found = use_.find(pool);
    PoolUse use = found == use_.end() ? PoolUse() : found->second;
    for (const RunningJob& job : facts_.running) {
      if (job.pool != pool || !(job.ending || victims_.contains(job.id))) continue;
      RemoveUse(use, job.use);
    }
    return use;
  }

  // Gives the job the slots that become free for it, so that no job behind it counts them.
  void TakeLater(const WaitingJob& job, const PlacementFacts& wanted) {
    const PlacementDecision decision = DecidePlacement(On(future_, wanted));
    if (decision.ranks_by_host.has_value()) Take(future_, *decision.ranks_by_host, job.placement.cpus);
  }

  // A job that could not even be placed on an empty cluster reserves nothing.
  void Reserve(const WaitingJob& job, const PlacementFacts& wanted, const std::string& why) {
    if (!facts_.settled && closed_by_ == nullptr) closed_by_ = &job;
    // A job ahead with the same demand has reserved all hosts that suit this one.
    if (!HasOwnHosts(wanted) && !reserved_demands_.insert(DemandOf(wanted)).second) return;
    if (!CouldFit(On(open_, wanted))) return;
    const std::string text = absl::StrCat("reserved for job ", job.id.value(), ", ", why);
    const std::vector<bool> suits = HostsFor(open_, wanted);
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!suits[i] || !ReasonAgainstHost(wanted, hosts_[i]).empty()) continue;
      hosts_[i].unusable = text;
      reserved_[i] = &job;
    }
  }

  // The hosts that the job may use; if it needs one version, only those of versions on whose hosts it could be placed.
  static std::vector<bool> HostsFor(const Hosts& hosts, const PlacementFacts& wanted) {
    std::vector<PlacementFacts> versions = OfEachVersion(On(hosts, wanted));
    const bool is_divided = !versions.empty();
    std::erase_if(versions, [](const PlacementFacts& one) { return !CouldFit(one); });
    std::vector<bool> suits;
    for (const HostSlots& host : hosts) {
      const bool has_version = !is_divided || std::any_of(versions.begin(), versions.end(),
                                                          [&](const auto& one) { return one.version == host.version; });
      suits.push_back(has_version && ReasonAgainstHost(wanted, host).empty());
    }
    return suits;
  }

  static void Block(Hosts& hosts, const PlacementFacts& wanted, const std::string& text) {
    const std::vector<bool> may_use = HostsFor(hosts, wanted);
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (may_use[i]) hosts[i].unusable = text;
    }
  }

  // Returns the job that holds slots with which this one would start; null: there is none.
  const WaitingJob* ReservedFor(const WaitingJob& job, const PlacementFacts& wanted) {
    if (reserved_.empty() || !Fits(open_, failed_open_, job, wanted)) return nullptr;
    for (const auto& [index, holder] : reserved_) {
      if (Usable(wanted, open_[index]) > 0) return holder;
    }
    return nullptr;
  }

  const WaitingJob* PoolClosedFor(const WaitingJob& job) const {
    if (job.continues) return nullptr;
    const auto closed = closed_pools_.find(job.pool);
    return closed == closed_pools_.end() ? nullptr : closed->second;
  }

  // Adds to the reason the running jobs that this one may preempt later, and what protects each of them now.
  void AddProtections(const WaitingJob& job, QueueOutcome& outcome) const {
    if (outcome.reason.empty() || !MayEverPreempt(job)) return;
    std::vector<std::string> texts;
    for (const RunningJob& other : facts_.running) {
      if (other.ending || other.protection.empty() || !MayPreempt(rules_, job, other)) continue;
      texts.push_back(other.protection);
      if (texts.size() > kNamed) break;
    }
    if (!texts.empty()) absl::StrAppend(&outcome.reason, "; preempts none: ", JoinFirst(texts, kNamed, "; "));
  }

  std::string ReasonOfPlacement(const PlacementFacts& wanted) {
    return gives_reason_ ? DecidePlacement(On(hosts_, wanted)).reason : "";
  }

  QueueOutcome Wait(WaitCause cause, std::string reason) {
    QueueOutcome outcome;
    outcome.cause = cause;
    if (!gives_reason_) return outcome;
    --reasons_left_;
    outcome.reason = std::move(reason);
    return outcome;
  }
  QueueOutcome WaitBehind(const WaitingJob& ahead, std::string reason) {
    QueueOutcome outcome = Wait(WaitCause::kBehind, std::move(reason));
    outcome.waits_for.push_back(ahead.id);
    return outcome;
  }

  const QueueFacts& facts_;
  const QueueRules& rules_;
  Hosts hosts_;   // free now; hosts with a reservation are unusable
  Hosts open_;    // the same without reservations
  Hosts future_;  // free once the ending jobs have ended, less what the jobs ahead then get
  std::map<HostName, size_t> index_;
  std::map<std::string, PoolUse> use_;
  std::map<size_t, const WaitingJob*> reserved_;           // by host
  std::map<std::string, const WaitingJob*> closed_pools_;  // the job that the quota of a pool is kept for
  const WaitingJob* closed_by_ = nullptr;                  // hosts still connect: no new job starts behind this one
  std::set<JobId> victims_;
  // The demands that are known not to fit on hosts_, on open_ and on future_. When slots become free during the pass,
  // the sets of the hosts concerned are cleared.
  std::set<Demand> failed_, failed_open_, failed_later_;
  std::set<Demand> reserved_demands_;  // whose hosts are reserved
  bool any_ending_ = false;
  int vain_searches_ = 0;
  size_t reasons_left_;
  size_t reasons_to_skip_;
  bool gives_reason_ = false;  // to the job that is decided now
};

}  // namespace

const char* WaitCauseName(WaitCause cause) {
  constexpr const char* kNames[] = {"", "slots", "quota", "preemption", "behind", "delay"};
  return kNames[static_cast<size_t>(cause)];
}

std::vector<QueueOutcome> DecideQueue(const QueueFacts& facts) { return Pass(facts).Run(); }

}  // namespace trainyard
