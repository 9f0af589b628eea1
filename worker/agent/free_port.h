// Chooses the port on which rank 0 of a command will listen (MASTER_PORT). The port is free when it is chosen. If
// possible it lies below the range from which the kernel takes ports for outgoing connections, so that it usually stays
// free until the program listens. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/random/random.h"
#include "absl/status/statusor.h"

namespace trainyard::agent {

class PortChooser {
 public:
  // Does not return one of the last ports that it has returned, because their programs may not listen yet. Possible
  // errors: ResourceExhausted: no free port was found.
  absl::StatusOr<uint16_t> Choose();

 private:
  absl::BitGen random_;
  std::deque<uint16_t> recent_;
};

}  // namespace trainyard::agent
