// A communicator that also supports point-to-point messages between two members. Sums that travel from place to place
// (place_chain.h; a place is a set of ranks that can share memory) and packets over gloo (packet_slots.h) use them.
//
// Threads and errors: the same as for Communicator.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

class PeerCommunicator : public virtual Communicator {
 public:
  // Messages from one member to another arrive in the order in which they were sent. The receiver's tensor must be at
  // least as large as the message; the receiver does not learn the message's size. Sends and receives complete
  // independently, in any order, and do not wait for operations that were started earlier. The tensor must not be
  // touched from the start until the wait has returned.
  virtual std::unique_ptr<Collective> SendTo(const at::Tensor& tensor, int peer) = 0;
  virtual std::unique_ptr<Collective> ReceiveFrom(const at::Tensor& tensor, int peer) = 0;
};

// The gloo implementation. REQUIRES: a world of more than one. Possible errors: those of NewGlooCommunicator.
absl::StatusOr<std::unique_ptr<PeerCommunicator>> NewGlooPeers(const GlooOptions& options);

}  // namespace trainyard
