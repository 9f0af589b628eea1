// Events that must change nothing, because they belong to an old stream of a host or to an ended generation.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"

namespace trainyard::sim {

class StaleCheck {
 public:
  // Called before the event is handled. nullopt: the event may change something.
  static std::optional<StaleCheck> Of(const Event& event, const State& state);

  // Called after the event was handled. Returns what changed, or "" if no job that the event names has changed.
  std::string WhatChanged(const State& state) const;

 private:
  std::string what_;
  std::map<JobId, std::string> before_;
};

// A planted bug (mutation.h): makes the event look as if it came from the job's current generation and the host's
// current stream.
void ForgeCurrent(Event& event, const State& state);

}  // namespace trainyard::sim
