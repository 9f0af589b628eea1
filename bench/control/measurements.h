// The figures of the control plane that need no trainer: each a function that makes its own coordinator process and
// fleet, measures, and returns what it saw. Documented in bench/README.md; the bars are in bench/control_plane.py.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard::bench {

struct Setting {
  std::string coordinator;  // path of trainyard-coordinator
  std::string folder;       // for its state; empty at the start
  size_t hosts = 64;
  size_t samples = 100;
  absl::Duration duration = absl::Seconds(20);  // of rows that look on for a while
  absl::Duration limit = absl::Minutes(5);      // no sample is begun later, once there is one
};

// Figures by name; times in milliseconds unless the name says otherwise.
using Figures = std::map<std::string, double>;

// The last host joins → every rank was told to go.
absl::StatusOr<Figures> MeasureFormation(const Setting& setting);
// All hosts dial at once → the last one is welcomed.
absl::StatusOr<Figures> MeasureStorm(const Setting& setting);
// A trainer dies → the last of the other hosts was told to end its own.
absl::StatusOr<Figures> MeasureDeath(const Setting& setting);
// The coordinator is killed → another serves, all hosts are attached, their job is adopted.
absl::StatusOr<Figures> MeasureRestart(const Setting& setting);
// Hosts are attached and send a heartbeat a second: share of a core, memory.
absl::StatusOr<Figures> MeasureSteady(const Setting& setting);
// Facts a second, from the hosts' daemons until they are told that each is durable.
absl::StatusOr<Figures> MeasureEvents(const Setting& setting);

}  // namespace trainyard::bench
