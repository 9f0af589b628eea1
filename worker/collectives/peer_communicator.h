// A group whose members can also send to one another, not only all at once: what a sum that goes from place to place is
// made of (place_chain.h).
//
// Threads and errors: those of a Communicator.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

class PeerCommunicator : public virtual Communicator {
 public:
  // What one member sends to another arrives in the order in which it was sent, in tensors of the same sizes. Both end
  // on their own, in any order; neither waits for operations that were started before. A tensor is left alone from the
  // start to the end of its wait.
  virtual std::unique_ptr<Collective> SendTo(const at::Tensor& tensor, int peer) = 0;
  virtual std::unique_ptr<Collective> ReceiveFrom(const at::Tensor& tensor, int peer) = 0;
};

// NewGlooCommunicator's. REQUIRES: a world of more than one. Possible errors: those said there.
absl::StatusOr<std::unique_ptr<PeerCommunicator>> NewGlooPeers(const GlooOptions& options);

}  // namespace trainyard
