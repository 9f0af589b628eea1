// Collective operations among the ranks of one host through shared memory (shared_segment.h): nothing is copied through
// the kernel, and a wait takes a few microseconds, compared with hundreds over sockets. Values are added in rank order,
// so that the same ranks give the same bits in every operation.
//
// The rank's own thread runs the operations, in the order in which they were started: when it waits for one of them, up
// to that one; in AdvanceOperations, as far as possible without waiting. A background thread, as communicators over
// sockets have, would only take CPU time from the backward pass.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/shared_segment.h"

namespace trainyard {

// A communicator of the ranks of one place (group.h), with the additional operation that a hostwise communicator
// (hostwise_communicator.h) needs of it.
class PlaceCommunicator : public Communicator {
 public:
  // `in` and `out` consist of one part per rank: `out` becomes the concatenation of this rank's part of every rank's
  // `in`. They must not overlap.
  virtual std::unique_ptr<Collective> AllToAll(const at::Tensor& out, const at::Tensor& in) = 0;
};

// Returns when all ranks have joined; all must be processes of one host and one user. Possible errors: those of
// SharedSegment::Join; InvalidArgument for an invalid rank.
absl::StatusOr<std::unique_ptr<Communicator>> NewSharedMemoryCommunicator(const SharedSegmentOptions& options);
// The same, with AllToAll. REQUIRES: there is more than one rank.
absl::StatusOr<std::unique_ptr<PlaceCommunicator>> NewPlaceCommunicator(const SharedSegmentOptions& options);

}  // namespace trainyard
