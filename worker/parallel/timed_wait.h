// Waits for an operation and adds the time that the wait took to `seconds`.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

inline absl::Status TimedWait(Collective& operation, Clock& clock, double& seconds) {
  const absl::Time began = clock.TimeNow();
  absl::Status status = operation.Wait();
  seconds += absl::ToDoubleSeconds(clock.TimeNow() - began);
  return status;
}

}  // namespace trainyard
