// trainyard-sim: runs simulated clusters by seed. Exit code 1: an invariant was broken; the seed, the command that
// repeats it and a trace of a smaller scenario that breaks the same are printed.
//
//   trainyard-sim --first 1 --seeds 300
//   trainyard-sim --first 42 --trace
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/shrink.h"

namespace trainyard::sim {
namespace {

struct Options {
  uint64_t first = 1;
  uint64_t seeds = 1;
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

std::optional<Options> ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--trace") {
      options.trace = true;
    } else if (word == "--no-shrink") {
      options.shrink = false;
    } else if (word == "--first" && absl::SimpleAtoi(value, &options.first)) {
      ++i;
    } else if (word == "--seeds" && absl::SimpleAtoi(value, &options.seeds)) {
      ++i;
    } else if (word == "--mutation" && MutationByName(value).has_value()) {
      options.mutation = *MutationByName(value);
      ++i;
    } else {
      std::fprintf(stderr,
                   "trainyard-sim: '%s' is not understood; it takes --first SEED, --seeds N, --trace, --no-shrink, "
                   "--mutation NAME\n",
                   word.c_str());
      return std::nullopt;
    }
  }
  return options;
}

void Print(const std::deque<std::string>& trace) {
  for (const std::string& line : trace) std::printf("  %s\n", line.c_str());
}

void Explain(const Scenario& scenario, const Violation& violation, const Options& options) {
  std::printf("\nseed %llu breaks '%s': %s\n", static_cast<unsigned long long>(scenario.seed),
              violation.invariant.c_str(), violation.text.c_str());
  std::printf("repeat it: ./dev sim %llu\n", static_cast<unsigned long long>(scenario.seed));
  if (!options.shrink) return;
  Shrunk shrunk = Shrink(scenario, {.mutation = options.mutation, .trace = false, .check_every = 1});
  std::printf("\nthe smallest scenario found (in %d runs) that breaks the same:\n%s\n", shrunk.runs,
              Describe(shrunk.scenario).c_str());
  Print(shrunk.result.trace);
}

int Run(const Options& options) {
  uint64_t events = 0;
  absl::Duration time;
  for (uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    Scenario scenario = DrawScenario(seed);
    Result result = World(scenario, {.mutation = options.mutation, .trace = options.trace, .check_every = 1}).Run();
    events += result.events + result.daemon_events;
    time += result.virtual_time;
    if (options.trace) {
      std::printf("%s\n", Describe(scenario).c_str());
      Print(result.trace);
    }
    if (!result.violation.has_value()) continue;
    Explain(scenario, *result.violation, options);
    return 1;
  }
  std::printf("%llu seeds from %llu on, %llu events, %.0f s of simulated time: every invariant held\n",
              static_cast<unsigned long long>(options.seeds), static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(events), absl::ToDoubleSeconds(time));
  return 0;
}

}  // namespace
}  // namespace trainyard::sim

int main(int argc, char** argv) {
  auto options = trainyard::sim::ReadOptions(argc, argv);
  return options.has_value() ? trainyard::sim::Run(*options) : 2;
}
