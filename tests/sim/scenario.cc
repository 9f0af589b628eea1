#include "tests/sim/scenario.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/engine.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kFaultsEnd = absl::Seconds(45);

absl::Duration DrawDuration(FaultKind kind, Random& random) {
  switch (kind) {
    case FaultKind::kCrashCoordinator:
    case FaultKind::kCrashDaemon:
    case FaultKind::kStrikeSave:
      // Usually a supervisor restarts the process within 2 s; sometimes an operator must do it.
      return random.Chance(0.7) ? random.Between(absl::Milliseconds(20), absl::Seconds(2))
                                : random.Between(absl::Seconds(2), absl::Seconds(15));
    case FaultKind::kPauseCoordinator:
    case FaultKind::kSlowStore:
    case FaultKind::kFullStore:
    case FaultKind::kFullDisk:
      return random.Between(absl::Milliseconds(200), absl::Seconds(12));
    case FaultKind::kKillHost:
      return random.Between(absl::Seconds(2), absl::Seconds(25));
    case FaultKind::kFreezeTrainer:
    case FaultKind::kCutControl:
    case FaultKind::kCutHost:
    case FaultKind::kCutData:
    case FaultKind::kSlowTrainer:
    case FaultKind::kLossyLink:
    case FaultKind::kFailWrites:
      return random.Between(absl::Milliseconds(300), absl::Seconds(25));
    case FaultKind::kStopDaemon:
    case FaultKind::kStopHost:
      return random.Between(absl::Milliseconds(20), absl::Seconds(15));
    default:
      return absl::ZeroDuration();
  }
}

// Rounded down to the precision of scenario files.
absl::Duration DrawTime(Random& random, absl::Duration from, absl::Duration to) {
  return absl::Trunc(random.Between(from, to), absl::Microseconds(1));
}

double DrawDrift(Random& random) { return std::round((random.Unit() - 0.5) * 2e-3 * 1e9) / 1e9; }

HostPlan DrawHost(Random& random) {
  return {.slots = static_cast<uint32_t>(random.Between(1, 4)),
          .clock_offset = DrawTime(random, -absl::Seconds(30), absl::Seconds(30)),
          .clock_drift = DrawDrift(random)};
}

JobPlan DrawJob(Random& random, uint32_t number, uint32_t slots) {
  JobPlan job;
  job.number = number;
  job.at = DrawTime(random, absl::ZeroDuration(), absl::Seconds(15));
  job.ranks = static_cast<uint32_t>(random.Between(1, std::min(slots, 5u)));
  job.steps = static_cast<uint32_t>(random.Chance(0.9) ? random.Between(5, 60) : random.Between(60, 150));
  job.save_every = random.Chance(0.8) ? static_cast<uint32_t>(random.Between(3, 20)) : 0;
  job.evaluate_every = random.Chance(0.3) ? static_cast<uint32_t>(random.Between(4, 10)) : 0;
  job.max_restarts = random.Chance(0.1) ? static_cast<uint32_t>(random.Between(0, 2)) : 1'000;
  job.step_time = DrawTime(random, absl::Milliseconds(100), absl::Milliseconds(700));
  return job;
}

Fault DrawFault(Random& random, FaultKind kind, size_t hosts, absl::Duration end) {
  Fault fault{.kind = kind,
              .at = DrawTime(random, absl::Milliseconds(100), end - absl::Seconds(1)),
              .lasts = absl::ZeroDuration(),
              .host = static_cast<uint32_t>(random.Below(hosts)),
              .salt = random.Next()};
  fault.lasts = absl::Trunc(DrawDuration(fault.kind, random), absl::Microseconds(1));
  return fault;
}

// The number of slots that a job can use with tensor groups of this size. No tensor group spans hosts.
uint32_t UsableSlots(const Scenario& scenario, uint32_t tensor) {
  uint32_t slots = 0;
  for (const HostPlan& host : scenario.hosts) slots += host.slots / tensor * tensor;
  return slots;
}

// Divides the models of some jobs. Worlds with such jobs may get more faults: kLeaveOut, which no other jobs have, and
// kFreezeTrainer. Draws from a separate random sequence, so that the other choices do not depend on it.
void DivideModels(Scenario& scenario) {
  Random random(scenario.seed, "divided models");
  constexpr std::pair<uint32_t, uint32_t> kSizes[] = {{2, 1}, {3, 1}, {1, 2}, {2, 2}, {4, 1}};  // stages, tensor
  bool any = false;
  for (JobPlan& job : scenario.jobs) {
    const auto [stages, tensor] = kSizes[random.Below(std::size(kSizes))];
    const uint32_t copy = stages * tensor;
    const uint32_t slots = UsableSlots(scenario, tensor);
    if (!random.Chance(0.4) || slots < copy) continue;
    job.stages = stages;
    job.tensor = tensor;
    job.ranks = std::min((job.ranks + copy - 1) / copy, slots / copy) * copy;
    any = true;
  }
  for (uint64_t i = any && random.Chance(0.4) ? random.Between(1, 3) : 0; i > 0; --i) {
    const FaultKind kind = random.Chance(0.5) ? FaultKind::kLeaveOut : FaultKind::kFreezeTrainer;
    scenario.faults.push_back(DrawFault(random, kind, scenario.hosts.size(), kFaultsEnd));
  }
}

// The largest number of ranks that the hosts hold at a time.
uint32_t LargestGroup(const Scenario& scenario, uint32_t ranks_per_host) {
  uint32_t ranks = 0;
  for (const HostPlan& host : scenario.hosts) {
    if (ranks_per_host == 0) ranks += host.slots;
    if (ranks_per_host > 0 && host.slots >= ranks_per_host) ranks += ranks_per_host;
  }
  return ranks;
}

// Adds scripts that work with different numbers of ranks to some worlds. Draws from a separate random sequence, so that
// the other choices do not depend on it.
void AddScripts(Scenario& scenario) {
  Random random(scenario.seed, "scripts");
  for (uint64_t i = random.Chance(0.35) ? random.Between(1, 2) : 0; i > 0; --i) {
    JobPlan job;
    job.number = scenario.jobs.back().number + 1;
    job.at = DrawTime(random, absl::ZeroDuration(), absl::Seconds(20));
    const uint32_t per_host = random.Chance(0.3) ? static_cast<uint32_t>(random.Between(1, 2)) : 0;
    const uint32_t unit = std::max(1u, per_host);
    const uint32_t largest = LargestGroup(scenario, per_host);
    if (largest < unit) continue;
    job.ranks_per_host = per_host;
    job.ranks = static_cast<uint32_t>(random.Between(1, std::min(largest, 6u) / unit)) * unit;
    job.min_ranks = static_cast<uint32_t>(random.Between(1, job.ranks / unit)) * unit;
    job.steps = static_cast<uint32_t>(random.Between(10, 250));
    job.step_time = DrawTime(random, absl::Milliseconds(200), absl::Seconds(1));
    job.save_every = random.Chance(0.8) ? static_cast<uint32_t>(random.Between(1, 10)) : 0;
    job.max_restarts = random.Chance(0.1) ? static_cast<uint32_t>(random.Between(0, 2)) : 1'000;
    job.grow_after = DrawTime(random, absl::Seconds(1), absl::Seconds(15));
    job.grace = DrawTime(random, absl::Milliseconds(200), absl::Seconds(6));
    job.ignores_stop = random.Chance(0.2);
    scenario.jobs.push_back(job);
  }
}

// Gives the jobs of some worlds priorities and namespaces with quotas, and adds jobs that compete for the slots. Draws
// from a separate random sequence, so that the other choices do not depend on it.
void PlanQueue(Scenario& scenario) {
  Random random(scenario.seed, "queue");
  if (!random.Chance(0.5)) return;
  QueuePlan& queue = scenario.queue;
  queue.preemption = random.Chance(0.7);
  queue.min_run = DrawTime(random, absl::Milliseconds(500), absl::Seconds(6));
  queue.overtake = DrawTime(random, absl::Seconds(2), absl::Seconds(40));
  const uint32_t slots = UsableSlots(scenario, /*tensor=*/1);
  for (uint64_t i = random.Between(0, 3); i > 0; --i) {
    JobPlan job = DrawJob(random, static_cast<uint32_t>(scenario.jobs.size() + 1), slots);
    job.at = DrawTime(random, absl::Seconds(1), absl::Seconds(40));
    job.steps = std::min(job.steps, 40u);
    scenario.jobs.push_back(job);
  }
  constexpr const char* kNames[] = {"default", "research", "teaching"};
  for (JobPlan& job : scenario.jobs) {
    job.priority = static_cast<uint32_t>(random.Below(4)) * 25;
    job.name_space = kNames[random.Below(std::size(kNames))];
  }
  for (const char* name : kNames) {
    if (!random.Chance(0.6)) continue;
    NamespacePlan space{.name = name,
                        .max_slots = static_cast<uint32_t>(random.Between(1, slots)),
                        .weight_milli = static_cast<uint32_t>(random.Between(1, 4)) * 500};
    // No job may be larger than its quota, because such a job is refused.
    for (const JobPlan& job : scenario.jobs) {
      if (job.name_space == name) space.max_slots = std::max(space.max_slots, job.ranks);
    }
    if (random.Chance(0.3)) space.max_slots = 0;
    queue.namespaces.push_back(std::move(space));
  }
  for (uint64_t i = random.Between(0, 2); i > 0; --i) {
    scenario.operations.push_back({.kind = OperationKind::kSetPriority,
                                   .at = DrawTime(random, absl::Seconds(1), kFaultsEnd),
                                   .job = static_cast<uint32_t>(random.Below(scenario.jobs.size())),
                                   .priority = static_cast<uint32_t>(random.Below(5)) * 25});
  }
  scenario.extra_time = absl::Minutes(20);
}

}  // namespace

const char* NameOf(FaultKind kind) {
  constexpr const char* kNames[] = {
      "crash-coordinator", "pause-coordinator", "slow-store",     "full-store",  "step-clock", "crash-daemon",
      "kill-host",         "crash-trainer",     "freeze-trainer", "cut-control", "cut-host",   "drop-stream",
      "silence-stream",    "full-disk",         "stop-daemon",    "stop-host",   "cut-data",   "slow-trainer",
      "lossy-link",        "strike-save",       "fail-writes",    "leave-out"};
  return kNames[static_cast<int>(kind)];
}

bool IsOfHost(FaultKind kind) { return kind >= FaultKind::kCrashDaemon; }

const char* NameOf(OperationKind kind) {
  constexpr const char* kNames[] = {"cancel", "pause",    "resume", "restart",      "drain",
                                    "cordon", "uncordon", "save",   "cancel-saved", "set-priority"};
  return kNames[static_cast<int>(kind)];
}

Scenario DrawScenario(uint64_t seed) {
  Random random(seed, "scenario");
  Scenario scenario{.seed = seed, .hosts = {}, .jobs = {}, .operations = {}, .faults = {}, .faults_end = kFaultsEnd};
  uint32_t slots = 0;
  for (uint64_t i = random.Between(1, 4); i > 0; --i) {
    scenario.hosts.push_back(DrawHost(random));
    slots += scenario.hosts.back().slots;
  }
  scenario.coordinator_drift = DrawDrift(random);
  const uint32_t jobs = static_cast<uint32_t>(random.Between(1, 4));
  for (uint32_t i = 0; i < jobs; ++i) scenario.jobs.push_back(DrawJob(random, i + 1, slots));
  // Some worlds have only one kind of fault, so that a rare kind is not always hidden by a common kind.
  const bool one_kind = random.Chance(0.3);
  const uint64_t kinds = static_cast<uint64_t>(FaultKind::kLastOfAnyJob) + 1;
  const uint64_t kind = random.Below(kinds);
  for (uint64_t i = random.Between(0, 9); i > 0; --i) {
    FaultKind which = static_cast<FaultKind>(one_kind ? kind : random.Below(kinds));
    scenario.faults.push_back(DrawFault(random, which, scenario.hosts.size(), kFaultsEnd));
  }
  if (!one_kind && random.Chance(0.5)) {
    for (uint64_t i = random.Between(1, 3); i > 0; --i) {
      scenario.faults.push_back(DrawFault(random, FaultKind::kStrikeSave, scenario.hosts.size(), kFaultsEnd));
    }
  }
  // Shared folders have a random sequence of their own, so that the other choices do not depend on them.
  Random sharing(seed, "shared folders");
  if (jobs > 1 && sharing.Chance(0.3)) {
    const uint32_t first = static_cast<uint32_t>(sharing.Below(jobs - 1));
    scenario.jobs[first + 1].folder_of = scenario.jobs[first].number;
  }
  DivideModels(scenario);
  const bool operators = random.Chance(0.5);
  for (uint64_t i = operators ? random.Between(1, 4) : 0; i > 0; --i) {
    scenario.operations.push_back(
        {.kind = static_cast<OperationKind>(random.Below(static_cast<uint64_t>(OperationKind::kLastOfAnyJob) + 1)),
         .at = DrawTime(random, absl::Seconds(1), kFaultsEnd),
         .job = static_cast<uint32_t>(random.Below(jobs)),
         .host = static_cast<uint32_t>(random.Below(scenario.hosts.size())),
         .now = random.Chance(0.3)});
  }
  AddScripts(scenario);
  PlanQueue(scenario);
  std::sort(scenario.faults.begin(), scenario.faults.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return scenario;
}

Scenario DrawLargeScenario(uint64_t seed, uint32_t hosts, uint32_t jobs) {
  constexpr absl::Duration kEnd = absl::Seconds(20);
  Random random(seed, "large scenario");
  Scenario scenario{.seed = seed, .hosts = {}, .jobs = {}, .operations = {}, .faults = {}, .faults_end = kEnd};
  for (uint32_t i = 0; i < hosts; ++i) scenario.hosts.push_back(DrawHost(random));
  for (uint32_t i = 1; i <= jobs; ++i) {
    JobPlan job = DrawJob(random, i, 16);
    job.at = DrawTime(random, absl::Seconds(1), absl::Seconds(6));
    job.ranks = static_cast<uint32_t>(random.Between(2, 16));
    job.steps = static_cast<uint32_t>(random.Between(10, 40));
    job.max_restarts = 1'000;
    scenario.jobs.push_back(job);
  }
  auto add_faults = [&](FaultKind kind, uint32_t count) {
    for (; count > 0; --count) scenario.faults.push_back(DrawFault(random, kind, hosts, kEnd));
  };
  add_faults(FaultKind::kKillHost, hosts / 100);
  add_faults(FaultKind::kCutControl, hosts / 50);
  add_faults(FaultKind::kCrashDaemon, hosts / 50);
  add_faults(FaultKind::kCrashTrainer, hosts / 20);
  add_faults(FaultKind::kLossyLink, hosts / 50);
  // At this time most jobs run.
  scenario.faults.push_back({.kind = FaultKind::kCrashCoordinator, .at = absl::Seconds(12), .lasts = absl::Seconds(1)});
  return scenario;
}

Scenario DrawLossyScenario(uint64_t seed, absl::Duration time) {
  Random random(seed, "lossy scenario");
  Scenario scenario{.seed = seed, .hosts = {}, .jobs = {}, .operations = {}, .faults = {}, .faults_end = time};
  for (uint64_t i = random.Between(2, 5); i > 0; --i) {
    scenario.hosts.push_back(DrawHost(random));
    scenario.hosts.back().slots = static_cast<uint32_t>(random.Between(1, 2));
  }
  uint32_t slots = 0;
  for (const HostPlan& host : scenario.hosts) slots += host.slots;
  // All jobs fit at the same time; the second one uses every slot that the first one leaves.
  for (uint32_t number = 1; slots > 0; ++number) {
    JobPlan job = DrawJob(random, number, slots);
    job.at = DrawTime(random, absl::ZeroDuration(), absl::Seconds(1));
    if (number == 2) job.ranks = slots;
    slots -= job.ranks;
    job.step_time = DrawTime(random, absl::Milliseconds(200), absl::Seconds(2));
    job.steps = static_cast<uint32_t>(time / job.step_time);
    job.save_every = static_cast<uint32_t>(random.Between(20, 200));
    job.max_restarts = 1'000;
    scenario.jobs.push_back(job);
  }
  scenario.loss = 0.01 + 0.3 * random.Unit();
  scenario.extra_time = 2 * time;
  return scenario;
}

}  // namespace trainyard::sim
