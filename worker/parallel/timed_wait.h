// Waits for an operation and adds the time for which the host waited to `seconds`. `stream_waits`, if not null,
// measures the wait of the device.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/collectives/communicator.h"
#include "worker/parallel/stream_waits.h"

namespace trainyard {

inline absl::Status TimedWait(Collective& operation, Clock& clock, double& seconds,
                              StreamWaits* stream_waits = nullptr) {
  const absl::Time began = clock.TimeNow();
  if (stream_waits != nullptr) stream_waits->BeforeWait();
  absl::Status status = operation.Wait();
  if (stream_waits != nullptr) stream_waits->AfterWait();
  seconds += absl::ToDoubleSeconds(clock.TimeNow() - began);
  return status;
}

}  // namespace trainyard
