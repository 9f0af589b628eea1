// Waits for an operation and adds the time it took.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

inline absl::Status TimedWait(Collective& operation, double& seconds) {
  const auto began = std::chrono::steady_clock::now();
  absl::Status status = operation.Wait();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return status;
}

}  // namespace trainyard
