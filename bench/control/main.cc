// trainyard-bench-control ROW: measures one figure of the control plane and prints it as a line of JSON. Called by
// bench/control_plane.py, which compares the figures with their bars, the limits that they must meet. Exit codes: 0
// measured; 1 failed; 2 unknown row; those of CLI11 for wrong flags.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/synchronization/mutex.h"
#include "bench/control/measurements.h"
#include "common/descriptor_limit.h"
#include "common/files.h"

namespace trainyard::bench {
namespace {

using Measure = absl::StatusOr<Figures> (*)(const Setting&);

const std::map<std::string, Measure>& Rows() {
  static const auto& rows = *new std::map<std::string, Measure>{
      {"formation", MeasureFormation}, {"storm", MeasureStorm},   {"death", MeasureDeath},
      {"restart", MeasureRestart},     {"steady", MeasureSteady}, {"events", MeasureEvents},
  };
  return rows;
}

int Run(int argc, char** argv) {
  CLI::App app("Measures one figure of the control plane with simulated hosts.", "trainyard-bench-control");
  Setting setting;
  std::string row;
  double seconds = 20;
  double limit = 300;
  app.add_option("row", row, "formation, storm, death, restart, steady or events")->required();
  app.add_option("--coordinator", setting.coordinator, "path of trainyard-coordinator")->required();
  app.add_option("--folder", setting.folder, "empty folder for the state of the coordinator")->required();
  app.add_option("--hosts", setting.hosts, "simulated hosts (default 64)")->check(CLI::Range(2, 8192));
  app.add_option("--samples", setting.samples, "number of samples (default 100)")->check(CLI::Range(1, 100'000));
  app.add_option("--seconds", seconds, "duration of steady and events (default 20)")->check(CLI::Range(1.0, 3600.0));
  app.add_option("--limit", limit, "seconds after which no further sample is started (default 300)")
      ->check(CLI::Range(1.0, 86'400.0));
  CLI11_PARSE(app, argc, argv);
  setting.duration = absl::Seconds(seconds);
  setting.limit = absl::Seconds(limit);
  auto found = Rows().find(row);
  if (found == Rows().end()) {
    std::fprintf(stderr, "trainyard-bench-control: unknown row '%s'\n", row.c_str());
    return 2;
  }
  RaiseDescriptorLimit();  // each connection needs a descriptor at both ends
  absl::StatusOr<Figures> figures = found->second(setting);
  if (!figures.ok()) {
    std::fprintf(stderr, "trainyard-bench-control: %s with %zu hosts: %s\n", row.c_str(), setting.hosts,
                 std::string(figures.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", nlohmann::json(*figures).dump().c_str());
  return 0;
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
#ifndef TRAINYARD_SANITIZED
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  return trainyard::bench::Run(argc, argv);
}
