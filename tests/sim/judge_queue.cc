// The part of Judge that checks the queue: quotas, priorities, preemption and pauses.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/lifecycle.h"
#include "tests/sim/judge.h"
#include "tests/sim/operators.h"

namespace trainyard::sim {
namespace {

// The coordinator marks jobs that have waited for long only once per second, and its clock differs from that of the
// world.
constexpr absl::Duration kMargin = absl::Seconds(4);
// In a healthy world a job is served by preemption within this time after the longest protection: it covers a stop with
// its save, and the start of a group.
constexpr absl::Duration kServeLimit = absl::Seconds(30);
// The protection of a job doubles with each of its preemptions, but at most this many times.
constexpr uint32_t kDoublingsOfProtection = 3;

// Whether the coordinator's sense of time may differ from that of the world.
bool DistortsTime(const Scenario& scenario) {
  return std::any_of(scenario.faults.begin(), scenario.faults.end(), [](const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kCrashCoordinator:
      case FaultKind::kPauseCoordinator:
      case FaultKind::kSlowStore:
      case FaultKind::kFullStore:
      case FaultKind::kStepClock:
      case FaultKind::kStrikeSave:
        return true;
      default:
        return false;
    }
  });
}

// Whether the job needs several slots on one host, so that enough free slots on different hosts may not suffice.
bool NeedsWholeGroups(const JobPlan& plan) { return plan.tensor > 1 || plan.ranks_per_host > 0; }

bool MayBeUsed(const Host& host) {
  return host.attached() && host.reachable && !host.record.cordoned() && !host.draining && host.trouble.empty();
}

uint64_t UsableSlots(const State& state) {
  uint64_t slots = 0;
  for (const auto& [name, host] : state.hosts) slots += MayBeUsed(host) ? host.slots : 0;
  return slots;
}

uint64_t RanksInUse(const State& state, const std::string& name) {
  uint64_t ranks = 0;
  for (const auto& [id, job] : state.jobs) {
    if (job.namespace_name() == name && HasTrainers(job.state())) ranks += job.ranks.size();
  }
  return ranks;
}

// 0: no limit.
uint32_t QuotaOf(const Scenario& scenario, const std::string& name) {
  for (const NamespacePlan& space : scenario.queue.namespaces) {
    if (space.name == name) return space.max_slots;
  }
  return 0;
}

bool QuotaPermits(const Scenario& scenario, const State& state, const JobPlan& plan) {
  const uint32_t quota = QuotaOf(scenario, plan.name_space);
  return quota == 0 || RanksInUse(state, plan.name_space) + plan.ranks <= quota;
}

absl::Duration LongestProtection(const Scenario& scenario, const State& state) {
  uint32_t preemptions = 0;
  for (const auto& [id, job] : state.jobs) preemptions = std::max(preemptions, job.head().preemptions());
  return scenario.queue.min_run * (1 << std::min(preemptions, kDoublingsOfProtection));
}

}  // namespace

void Judge::CheckQueue(const Core& core) {
  CheckQuotas(core);
  for (const auto& [id, job] : core.state().jobs) {
    CheckPaused(job);
    const GroupId group(id, job.generation());
    if (job.state() == v1::JOB_STATE_RUNNING) running_since_.try_emplace(group, engine_.now());
    if (job.record.ending() == v1::JobRecord::ENDING_PREEMPT) CheckPreempted(job);
    if (job.head().generation() == 0) {
      if (job.state() == v1::JOB_STATE_QUEUED) waits_since_.try_emplace(id, engine_.now());
      if (job.state() == v1::JOB_STATE_PAUSED) waits_since_.erase(id);  // it waits anew when it is resumed
    } else if (started_.insert(id).second && job.head().generation() == 1 && HasTrainers(job.state())) {
      CheckOvertaken(core, job);
    }
    CheckServed(core, job);
  }
}

void Judge::CheckQuotas(const Core& core) {
  for (const NamespacePlan& space : scenario_.queue.namespaces) {
    const uint64_t used = RanksInUse(core.state(), space.name);
    if (space.max_slots == 0 || used <= space.max_slots) continue;
    ReportViolation(invariant::kQuota, absl::StrCat("the jobs of namespace ", space.name, " use ", used,
                                                    " slots, and its quota is ", space.max_slots));
  }
}

void Judge::CheckPreempted(const Job& job) {
  const GroupId group(job.id, job.generation());
  if (harmed_.contains(group) && harmed_[group] == "it is preempted") return;
  NoteHarm(group, "it is preempted");
  if (!scenario_.queue.preemption) {
    ReportViolation(invariant::kPreemption, absl::StrCat(NameOf(job), " is preempted, which is not permitted"));
  }
  const JobId by(job.head().preempted_by());
  const JobPlan* plan = FindPlan(scenario_, job.id);
  const JobPlan* by_plan = FindPlan(scenario_, by);
  if (plan == nullptr || by_plan == nullptr) {
    return ReportViolation(invariant::kPreemption, absl::StrCat(NameOf(job), " is preempted by no job"));
  }
  const bool changed = priority_changed_.contains(job.id) || priority_changed_.contains(by);
  if (!changed && by_plan->priority <= plan->priority) {
    ReportViolation(invariant::kPreemption,
                    absl::StrCat(NameOf(job), " of priority ", plan->priority, " is preempted by ", by.value(),
                                 " of priority ", by_plan->priority));
  }
  const auto since = running_since_.find(group);
  const absl::Duration ran = since == running_since_.end() ? absl::ZeroDuration() : engine_.now() - since->second;
  // The margin is for clocks that differ slightly. A new coordinator counts from its own start, which only prolongs the
  // protection.
  if (ran + absl::Milliseconds(300) < scenario_.queue.min_run) {
    ReportViolation(invariant::kPreemption,
                    absl::StrCat(NameOf(job), " is preempted after it has trained for ", absl::FormatDuration(ran)));
  }
}

// Reports each job that is ahead of the started one, has waited for long, and could have run on its slots.
void Judge::CheckOvertaken(const Core& core, const Job& started) {
  const State& state = core.state();
  const JobPlan* plan = FindPlan(scenario_, started.id);
  if (plan == nullptr || DistortsTime(scenario_) || priority_changed_.contains(started.id)) return;
  for (const auto& [id, since] : waits_since_) {
    const auto at = state.jobs.find(id);
    const JobPlan* ahead = FindPlan(scenario_, id);
    if (at == state.jobs.end() || ahead == nullptr || NeedsWholeGroups(*ahead) || priority_changed_.contains(id))
      continue;
    const Job& job = at->second;
    const bool waits = job.state() == v1::JOB_STATE_QUEUED && job.head().generation() == 0;
    const bool is_ahead = ahead->priority > plan->priority ||
                          (ahead->priority == plan->priority && ahead->name_space == plan->name_space &&
                           job.record.submit_index() < started.record.submit_index());
    if (!waits || !is_ahead) continue;
    if (engine_.now() - since < scenario_.queue.overtake + kMargin) continue;
    if (UsableSlots(state) < ahead->ranks || !QuotaPermits(scenario_, state, *ahead)) continue;
    ReportViolation(invariant::kOvertaking, absl::StrCat(NameOf(started), " starts, and ", id.value(),
                                                         ", which is ahead of it, has waited for ",
                                                         absl::FormatDuration(engine_.now() - since)));
  }
}

// Checks that, while nothing is wrong, preemption gives the job the slots of jobs with lower priorities.
void Judge::CheckServed(const Core& core, const Job& job) {
  const State& state = core.state();
  const auto may_be_served = [&] {
    if (!healed_ || !scenario_.queue.preemption || job.state() != v1::JOB_STATE_QUEUED) return false;
    const JobPlan* plan = FindPlan(scenario_, job.id);
    if (plan == nullptr || NeedsWholeGroups(*plan) || !QuotaPermits(scenario_, state, *plan)) return false;
    if (job.record.avoided_size() > 0) return false;
    // Slots may be kept or reserved for a job that is ahead of it.
    for (const auto& [id, other] : state.jobs) {
      const bool waits = other.state() == v1::JOB_STATE_QUEUED || other.state() == v1::JOB_STATE_RECOVERING;
      if (id == job.id || !waits || other.priority() < job.priority()) continue;
      // Only later jobs of its namespace are known to be behind it; fairness orders those of other namespaces.
      const bool is_behind = other.priority() == job.priority() && other.namespace_name() == job.namespace_name() &&
                             other.state() == v1::JOB_STATE_QUEUED && !other.record.admitted() &&
                             other.record.submit_index() > job.record.submit_index();
      if (!is_behind) return false;
    }
    uint64_t slots = 0;
    for (const auto& [name, host] : state.hosts) {
      if (!MayBeUsed(host)) return false;
      uint64_t kept = 0;  // slots of jobs that `job` cannot preempt
      for (const JobId& id : host.jobs) {
        const Job& other = state.jobs.at(id);
        if (!HasTrainers(other.state())) continue;
        const bool can_be_preempted = other.priority() < job.priority() && other.state() == v1::JOB_STATE_RUNNING &&
                                      other.record.failed_preemptions() == 0 && !scripts_.contains(id);
        const auto ranks = other.ranks_on.find(name);
        if (!can_be_preempted && ranks != other.ranks_on.end()) kept += ranks->second.size();
      }
      slots += host.slots - std::min<uint64_t>(kept, host.slots);
    }
    return slots >= plan->ranks;
  };
  if (!may_be_served()) {
    unserved_since_.erase(job.id);
    return;
  }
  const absl::Time since = unserved_since_.try_emplace(job.id, engine_.now()).first->second;
  if (engine_.now() - since < kServeLimit + LongestProtection(scenario_, state)) return;
  ReportViolation(
      invariant::kPriorities,
      absl::StrCat(NameOf(job), " of priority ", job.priority(), " waits for ",
                   absl::FormatDuration(engine_.now() - since),
                   " behind jobs of lower priorities, although it may preempt them: ", job.head().reason()));
}

void Judge::CheckPaused(const Job& job) {
  if (job.state() == v1::JOB_STATE_PAUSED) {
    paused_.insert(job.id);
    return;
  }
  if (paused_.erase(job.id) == 0) return;
  const bool resumed = resumed_.erase(job.id) > 0;
  if (resumed || job.state() == v1::JOB_STATE_CANCELLED) return;
  ReportViolation(invariant::kPaused, absl::StrCat(NameOf(job), " was paused and is ", StateName(job.state()),
                                                   ", although no user resumed it"));
}

}  // namespace trainyard::sim
