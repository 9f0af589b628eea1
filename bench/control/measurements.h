// The measurements of the control plane without real trainers: each function starts its own coordinator and fleet,
// measures, and returns the figures. Documented in bench/README.md; the bars, which are the limits that the
// figures must meet, are in bench/control_plane.py.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard::bench {

struct Setting {
  std::string coordinator;  // path of trainyard-coordinator
  std::string folder;       // for its state; initially empty
  size_t hosts = 64;
  size_t samples = 100;
  absl::Duration duration = absl::Seconds(20);  // of the measurements steady and events
  absl::Duration limit = absl::Minutes(5);      // no further sample is started after this time
};

// Figures by name; times in milliseconds unless the name says otherwise.
using Figures = std::map<std::string, double>;

// The last host begins to connect → every rank has received go.
absl::StatusOr<Figures> MeasureFormation(const Setting& setting);
// All hosts connect at the same time → the last one is welcomed.
absl::StatusOr<Figures> MeasureStorm(const Setting& setting);
// A trainer is killed → the last of the other hosts receives the order to stop its trainer.
absl::StatusOr<Figures> MeasureDeath(const Setting& setting);
// The coordinator is killed → its successor is ready, all hosts are attached, the job is adopted.
absl::StatusOr<Figures> MeasureRestart(const Setting& setting);
// The coordinator's share of a core, and its memory, while attached hosts send one heartbeat per second each.
absl::StatusOr<Figures> MeasureSteady(const Setting& setting);
// Durable facts per second, acknowledged to the hosts' daemons.
absl::StatusOr<Figures> MeasureEvents(const Setting& setting);

}  // namespace trainyard::bench
