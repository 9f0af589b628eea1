#include "tests/sim/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/sim/engine.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kFaultsEnd = absl::Seconds(45);

absl::Duration DrawLength(FaultKind kind, Random& random) {
  switch (kind) {
    case FaultKind::kCrashCoordinator:
    case FaultKind::kCrashDaemon:
      // Mostly a supervisor that starts it again at once, now and then an operator who must come first.
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
      return random.Between(absl::Milliseconds(300), absl::Seconds(25));
    default:
      return absl::ZeroDuration();
  }
}

HostPlan DrawHost(Random& random) {
  return {.slots = static_cast<uint32_t>(random.Between(1, 4)),
          .clock_offset = random.Between(-absl::Seconds(30), absl::Seconds(30)),
          .clock_drift = (random.Unit() - 0.5) * 2e-3};
}

JobPlan DrawJob(Random& random, uint32_t number, uint32_t slots) {
  JobPlan job;
  job.number = number;
  job.at = random.Between(absl::ZeroDuration(), absl::Seconds(15));
  job.ranks = static_cast<uint32_t>(random.Between(1, std::min(slots, 5u)));
  job.steps = static_cast<uint32_t>(random.Between(5, 60));
  job.save_every = random.Chance(0.8) ? static_cast<uint32_t>(random.Between(3, 20)) : 0;
  job.evaluate_every = random.Chance(0.3) ? static_cast<uint32_t>(random.Between(4, 10)) : 0;
  job.max_restarts = random.Chance(0.1) ? static_cast<uint32_t>(random.Between(0, 2)) : 1'000;
  job.step_time = random.Between(absl::Milliseconds(100), absl::Milliseconds(700));
  return job;
}

}  // namespace

const char* NameOf(FaultKind kind) {
  constexpr const char* kNames[] = {"crash coordinator", "pause coordinator", "slow store", "full store",
                                    "step clock",        "crash daemon",      "kill host",  "crash trainer",
                                    "freeze trainer",    "cut control",       "cut host",   "drop stream",
                                    "silence stream",    "full disk"};
  return kNames[static_cast<int>(kind)];
}

const char* NameOf(OperationKind kind) {
  constexpr const char* kNames[] = {"cancel", "pause", "resume", "restart", "drain", "cordon", "uncordon"};
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
  const uint32_t jobs = static_cast<uint32_t>(random.Between(1, 4));
  for (uint32_t i = 0; i < jobs; ++i) scenario.jobs.push_back(DrawJob(random, i + 1, slots));
  // Some worlds know one kind of fault only, so that a rare one is not always hidden behind a common one.
  const bool one_kind = random.Chance(0.3);
  const uint64_t kinds = static_cast<uint64_t>(FaultKind::kLast) + 1;
  const uint64_t kind = random.Below(kinds);
  for (uint64_t i = random.Between(0, 9); i > 0; --i) {
    Fault fault{.kind = static_cast<FaultKind>(one_kind ? kind : random.Below(kinds)),
                .at = random.Between(absl::Milliseconds(100), kFaultsEnd - absl::Seconds(1)),
                .lasts = absl::ZeroDuration(),
                .host = static_cast<uint32_t>(random.Below(scenario.hosts.size())),
                .salt = random.Next()};
    fault.lasts = DrawLength(fault.kind, random);
    scenario.faults.push_back(fault);
  }
  const bool operators = random.Chance(0.5);
  for (uint64_t i = operators ? random.Between(1, 4) : 0; i > 0; --i) {
    scenario.operations.push_back(
        {.kind = static_cast<OperationKind>(random.Below(static_cast<uint64_t>(OperationKind::kLast) + 1)),
         .at = random.Between(absl::Seconds(1), kFaultsEnd),
         .job = static_cast<uint32_t>(random.Below(jobs)),
         .host = static_cast<uint32_t>(random.Below(scenario.hosts.size())),
         .now = random.Chance(0.3)});
  }
  std::sort(scenario.faults.begin(), scenario.faults.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  auto seconds = [](absl::Duration duration) { return absl::StrFormat("%.3f s", absl::ToDoubleSeconds(duration)); };
  std::string text = absl::StrCat("seed ", scenario.seed, "\n");
  for (size_t i = 0; i < scenario.hosts.size(); ++i) {
    absl::StrAppend(&text, "  host w", i, ": ", scenario.hosts[i].slots, " slots\n");
  }
  for (const JobPlan& job : scenario.jobs) {
    absl::StrAppend(&text, "  ", seconds(job.at), "  submit job", job.number, ": ", job.ranks, " ranks, ", job.steps,
                    " steps of ", absl::FormatDuration(absl::Trunc(job.step_time, absl::Milliseconds(1))),
                    ", save every ", job.save_every, ", at most ", job.max_restarts, " restarts\n");
  }
  for (const Operation& operation : scenario.operations) {
    bool of_host = operation.kind >= OperationKind::kDrain;
    absl::StrAppend(&text, "  ", seconds(operation.at), "  operator: ", NameOf(operation.kind), " ",
                    of_host ? absl::StrCat("w", operation.host) : absl::StrCat("job", operation.job + 1),
                    operation.now ? " now\n" : "\n");
  }
  for (const Fault& fault : scenario.faults) {
    absl::StrAppend(&text, "  ", seconds(fault.at), "  fault: ", NameOf(fault.kind));
    if (fault.kind >= FaultKind::kCrashDaemon) absl::StrAppend(&text, " on w", fault.host);
    if (fault.lasts > absl::ZeroDuration()) absl::StrAppend(&text, " for ", seconds(fault.lasts));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace trainyard::sim
