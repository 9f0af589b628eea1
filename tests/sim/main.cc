// trainyard-sim: runs simulated clusters by seed, from a file, or for a long time under packet loss. If a seed breaks
// an invariant, the program prints the seed, the command that repeats it, and a trace of a reduced scenario that breaks
// the same invariant. Exit code: 0 for success, 1 for a failure, 2 for wrong usage or a file that cannot be read. With
// --shrink-to, success means that a seed broke an invariant and that the reduced scenario was written to the file.
//
//   trainyard-sim --first 1 --seeds 300
//   trainyard-sim --first 42 --trace
//   trainyard-sim --first 42 --shrink-to seed-42.txt
//   trainyard-sim --replay tests/sim/regressions/cut-before-go.txt --trace
//   trainyard-sim --lossy-minutes 1000
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/lossy.h"
#include "tests/sim/scenario_file.h"
#include "tests/sim/shrink.h"

namespace trainyard::sim {
namespace {

struct Options {
  uint64_t first = 1;
  uint64_t seeds = 1;
  uint64_t lossy_minutes = 0;
  std::string shrink_to;
  std::string replay;
  bool trace = false;
  bool shrink = true;
  Mutation mutation = Mutation::kNone;
};

std::optional<Mutation> MutationByName(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Mutation::kLast); ++i) {
    if (name == NameOf(static_cast<Mutation>(i))) return static_cast<Mutation>(i);
  }
  return std::nullopt;
}

// Parses a flag with a value; returns false for an unknown flag or an invalid value.
bool ReadValue(const std::string& flag, const std::string& value, Options& options) {
  if (value.empty()) return false;
  if (flag == "--first") return absl::SimpleAtoi(value, &options.first);
  if (flag == "--seeds") return absl::SimpleAtoi(value, &options.seeds);
  if (flag == "--lossy-minutes") return absl::SimpleAtoi(value, &options.lossy_minutes);
  if (flag == "--shrink-to") options.shrink_to = value;
  if (flag == "--replay") options.replay = value;
  if (flag == "--shrink-to" || flag == "--replay") return true;
  auto mutation = flag == "--mutation" ? MutationByName(value) : std::nullopt;
  options.mutation = mutation.value_or(Mutation::kNone);
  return mutation.has_value();
}

std::optional<Options> ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--trace") {
      options.trace = true;
    } else if (argument == "--no-shrink") {
      options.shrink = false;
    } else if (ReadValue(argument, i + 1 < argc ? argv[i + 1] : "", options)) {
      ++i;
    } else {
      std::fprintf(stderr,
                   "trainyard-sim: argument '%s' is unknown, or lacks a valid value; supported are --first SEED, "
                   "--seeds N, --trace, --no-shrink, --shrink-to FILE, --replay FILE, --lossy-minutes N, "
                   "--mutation NAME\n",
                   argument.c_str());
      return std::nullopt;
    }
  }
  return options;
}

void Print(const std::deque<std::string>& trace) {
  for (const std::string& line : trace) std::printf("  %s\n", line.c_str());
}

int Write(const Shrunk& shrunk, const Options& options) {
  ScenarioFile scenario_file{
      .why = absl::StrCat("Broke '", shrunk.result.violation->invariant, "': ", shrunk.result.violation->text),
      .scenario = shrunk.scenario,
      .mutation = options.mutation,
      .jobs = {},
      .logged = {},
      .not_logged = {},
      .breaks = options.mutation == Mutation::kNone ? "" : shrunk.result.violation->invariant};
  std::ofstream file(options.shrink_to);
  file << FormatScenarioFile(scenario_file);
  if (!file.flush()) {
    std::fprintf(stderr, "trainyard-sim: %s cannot be written\n", options.shrink_to.c_str());
    return 1;
  }
  std::printf("the smallest scenario found (in %d runs) is in %s\n", shrunk.runs, options.shrink_to.c_str());
  return 0;
}

int Explain(const Scenario& scenario, const Violation& violation, const Options& options) {
  std::printf("\nseed %llu breaks '%s': %s\n", static_cast<unsigned long long>(scenario.seed),
              violation.invariant.c_str(), violation.text.c_str());
  if (options.mutation == Mutation::kNone) {
    std::printf("repeat it: ./dev sim %llu\nadd it to the regressions: ./dev sim --shrink %llu\n",
                static_cast<unsigned long long>(scenario.seed), static_cast<unsigned long long>(scenario.seed));
  } else {  // ./dev sim has no option for mutations
    std::printf("repeat it: build/bin/tests/trainyard-sim --first %llu --mutation %s\n",
                static_cast<unsigned long long>(scenario.seed), NameOf(options.mutation));
  }
  if (!options.shrink) return 1;
  Shrunk shrunk = Shrink(scenario, {.mutation = options.mutation});
  if (!options.shrink_to.empty()) return Write(shrunk, options);
  std::printf("\nthe smallest scenario found (in %d runs) that breaks the same invariant:\n%s\n", shrunk.runs,
              FormatScenarioFile({.scenario = shrunk.scenario}).c_str());
  Print(shrunk.result.trace);
  return 1;
}

int Run(const Options& options) {
  uint64_t events = 0;
  absl::Duration time;
  for (uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    Scenario scenario = DrawScenario(seed);
    Result result = World(scenario, {.mutation = options.mutation, .trace = options.trace}).Run();
    events += result.events + result.daemon_events;
    time += result.virtual_time;
    if (options.trace) {
      std::printf("%s\n", FormatScenarioFile({.scenario = scenario}).c_str());
      Print(result.trace);
    }
    if (result.violation.has_value()) return Explain(scenario, *result.violation, options);
  }
  std::printf("%llu seeds from %llu on, %llu events, %.0f s of simulated time: every invariant held\n",
              static_cast<unsigned long long>(options.seeds), static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(events), absl::ToDoubleSeconds(time));
  if (options.shrink_to.empty()) return 0;
  std::printf("no scenario failed: nothing is written to %s\n", options.shrink_to.c_str());
  return 1;
}

int ReplayFile(const Options& options) {
  std::ifstream file(options.replay);
  std::stringstream text;
  text << file.rdbuf();
  absl::StatusOr<ScenarioFile> scenario_file = ParseScenarioFile(text.str());
  if (!file || !scenario_file.ok()) {
    std::string why = file ? std::string(scenario_file.status().message()) : "it cannot be read";
    std::fprintf(stderr, "trainyard-sim: %s: %s\n", options.replay.c_str(), why.c_str());
    return 2;
  }
  if (options.mutation != Mutation::kNone) scenario_file->mutation = options.mutation;
  Result result;
  absl::Status status = Replay(*scenario_file, &result);
  if (options.trace || !status.ok()) Print(result.trace);
  std::printf("%s: %s\n", options.replay.c_str(), status.ok() ? "as expected" : std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

int RunLossy(const Options& options) {
  LossyReport report = RunLossyMinutes(options.first, absl::Minutes(static_cast<int64_t>(options.lossy_minutes)));
  std::printf("%s\n", Describe(report).c_str());
  if (report.failed.has_value())
    std::printf("\nthe first scenario with a problem:\n%s\n", FormatScenarioFile({.scenario = *report.failed}).c_str());
  return report.problems.empty() ? 0 : 1;
}

}  // namespace
}  // namespace trainyard::sim

int main(int argc, char** argv) {
  using namespace trainyard::sim;
  auto options = ReadOptions(argc, argv);
  if (!options.has_value()) return 2;
  if (!options->replay.empty()) return ReplayFile(*options);
  return options->lossy_minutes > 0 ? RunLossy(*options) : Run(*options);
}
