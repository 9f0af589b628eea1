// Events that must change nothing: of a stream that is not a host's current one, or of a generation that is over.
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
  // Before it is handled. None: the event may change something.
  static std::optional<StaleCheck> Of(const Event& event, const State& state);

  // After it was handled. Empty: nothing of what it named has changed.
  std::string WhatChanged(const State& state) const;

 private:
  std::string what_;
  std::map<JobId, std::string> before_;
};

// Makes the event one of the job's current generation and the host's current stream [a planted bug].
void ForgeCurrent(Event& event, const State& state);

}  // namespace trainyard::sim
