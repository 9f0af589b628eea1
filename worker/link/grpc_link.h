// The link over gRPC and a Unix socket of the daemon. Two threads: one connects and reads, one writes. A broken stream
// is opened again after 50 ms, doubling up to 250 ms. Then facts without acknowledgement, the stored reports,
// and (before `go`) the values that this rank has put are sent again.
#pragma once

#include <memory>
#include <string>

#include "worker/link/link.h"

namespace trainyard {

struct GrpcLinkOptions {
  std::string socket;  // path of the daemon's socket
  std::string job_id;
  uint64_t generation = 0;
  uint32_t rank = 0;
  std::string token;  // proves to the daemon that this is the process it started
};

// Starts connecting immediately.
std::unique_ptr<Link> NewGrpcLink(const GrpcLinkOptions& options);

}  // namespace trainyard
