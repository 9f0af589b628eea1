// Collective operations among the ranks of one host through shared memory (shared_segment.h): no copy through the
// kernel, and waits of a few microseconds, compared with hundreds over sockets. Sums are made in rank order, so that
// the same ranks give the same bits in every operation.
//
// The rank's own thread runs an operation when it is waited for, together with all operations that were started before
// it. A background thread, as sockets use, would only take CPU time from the backward pass.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/shared_segment.h"

namespace trainyard {

// The ranks of one host, with the additional operation that a hostwise communicator (hostwise_communicator.h) needs
// there. A place is a set of processes that can share memory (group.h).
class PlaceCommunicator : public Communicator {
 public:
  // `in` and `out` consist of one part per rank: `out` becomes the concatenation of this rank's part of every rank's
  // `in`. They must not overlap.
  virtual std::unique_ptr<Collective> AllToAll(const at::Tensor& out, const at::Tensor& in) = 0;
};

// Returns when all ranks have joined; all must be processes of one host and one user. Possible errors: those of
// SharedSegment::Join; InvalidArgument for an invalid rank.
absl::StatusOr<std::unique_ptr<Communicator>> NewSharedMemoryCommunicator(const SharedSegmentOptions& options);
// The same, with AllToAll. REQUIRES: a world of more than one.
absl::StatusOr<std::unique_ptr<PlaceCommunicator>> NewPlaceCommunicator(const SharedSegmentOptions& options);

}  // namespace trainyard
