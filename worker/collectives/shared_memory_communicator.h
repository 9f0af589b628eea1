// Collective operations among the ranks of one host, through memory they share (shared_segment.h): no copy through the
// kernel, and a wait of microseconds where sockets need hundreds. Sums are made in rank order, so that the same ranks
// give the same bits whatever the operation they are summed by.
//
// An operation is carried out by the rank's own thread when it is waited for, together with all that were started
// before it: what a socket would move meanwhile in a thread of its own would only take the core from backward.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/shared_segment.h"

namespace trainyard {

// What a group of several places needs of one place, more than of any other group.
class PlaceCommunicator : public Communicator {
 public:
  // Each of `in` and `out` is a part for, or from, every rank, one after another: `out` becomes this rank's part of
  // every rank's `in`. They do not overlap.
  virtual std::unique_ptr<Collective> AllToAll(const at::Tensor& out, const at::Tensor& in) = 0;
};

// Returns when all ranks have come; all must be processes of one host and of one user. Possible errors: those of
// SharedSegment::Join; InvalidArgument for a rank that cannot be.
absl::StatusOr<std::unique_ptr<Communicator>> NewSharedMemoryCommunicator(const SharedSegmentOptions& options);
// The same. REQUIRES: a world of more than one.
absl::StatusOr<std::unique_ptr<PlaceCommunicator>> NewPlaceCommunicator(const SharedSegmentOptions& options);

}  // namespace trainyard
