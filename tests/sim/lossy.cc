#include "tests/sim/lossy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/policy/lifecycle.h"
#include "tests/sim/scenario.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kWorldTime = absl::Minutes(20);

void Compare(const Scenario& scenario, const Result& result, LossyReport& report) {
  std::string wrong;
  if (result.violation.has_value()) {
    absl::StrAppend(&wrong, " breaks '", result.violation->invariant, "': ", result.violation->text);
  }
  const Decisions& made = result.decisions;
  if (made.hosts_lost > 0) absl::StrAppend(&wrong, " loses ", made.hosts_lost, " hosts");
  if (made.hangs > 0) absl::StrAppend(&wrong, " reports ", made.hangs, " hangs");
  for (const auto& [number, job] : result.jobs) {
    if (job.generation != 1) ++report.generations_ended;
    if (job.generation == 1 && job.state == v1::JOB_STATE_SUCCEEDED) continue;
    absl::StrAppend(&wrong, " leaves job ", number, " ", StateName(job.state), " in generation ", job.generation);
  }
  if (!wrong.empty() && !report.failed.has_value()) report.failed = scenario;
  if (!wrong.empty()) absl::StrAppend(&report.problems, "\nseed ", scenario.seed, wrong);
}

}  // namespace

LossyReport RunLossyMinutes(uint64_t first_seed, absl::Duration time) {
  LossyReport report;
  for (uint64_t seed = first_seed; report.time < time; ++seed) {
    Scenario scenario = DrawLossyScenario(seed, std::min(kWorldTime, time));
    Result result = World(scenario, {.check_every = 16}).Run();
    report.time += result.virtual_time;
    ++report.worlds;
    report.jobs += scenario.jobs.size();
    report.decisions.unreachable += result.decisions.unreachable;
    report.decisions.hosts_lost += result.decisions.hosts_lost;
    report.decisions.hangs += result.decisions.hangs;
    report.decisions.restarts += result.decisions.restarts;
    Compare(scenario, result, report);
    if (result.violation.has_value()) break;
  }
  return report;
}

std::string Describe(const LossyReport& report) {
  return absl::StrFormat(
      "%.0f simulated minutes under loss in %d worlds of %d jobs: hosts were unreachable %d times, %d were given up, "
      "%d hangs reported, %d generations ended%s",
      absl::ToDoubleMinutes(report.time), report.worlds, report.jobs, report.decisions.unreachable,
      report.decisions.hosts_lost, report.decisions.hangs, report.generations_ended, report.problems);
}

}  // namespace trainyard::sim
