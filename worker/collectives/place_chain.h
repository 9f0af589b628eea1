// Sums over several places (group.h) with the same number of ranks each, in rank order (rank_sum.h [Note: one order of
// sums]). Each place adds the contributions of its ranks to the sum of the places before it and sends the new sum to
// the next place; the last place rounds the sum to the type of the contributions. The sum is split into pieces, so that
// all places work at the same time and results return while later pieces are still on their way:
//
//   place 0   starts 0   starts 1   starts 2   ...
//   place 1              adds 0     adds 1     adds 2   ...
//   place 2                         rounds 0   rounds 1   ...   and returns them through place 1 to place 0
//
// Every element crosses each link between neighbouring places once in each direction, which is no more than in a ring;
// sums of 16-bit elements travel in fp32. A place does not sum its own ranks first: that would change the order of the
// additions, and the last bits could differ.
//
// Not thread-safe: used only by the thread of its communicator. Possible errors: those of its operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "absl/status/status.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/scratch.h"

namespace trainyard {

class PlaceChain {
 public:
  // `across` connects the ranks that have the same local rank, one per place: rank r of `across` is in place r. Not
  // owned.
  PlaceChain(PeerCommunicator& across, size_t piece_bytes) : across_(across), piece_bytes_(piece_bytes) {}

  // `contributions`: those of the ranks of this place, concatenated. `out` becomes the sum over all places.
  absl::Status AllReduceSum(const at::Tensor& out, const at::Tensor& contributions);
  // The same, where each contribution consists of one part per place. `out` becomes the sum of this place's part.
  absl::Status ReduceScatterSum(const at::Tensor& out, const at::Tensor& contributions);

 private:
  PeerCommunicator& across_;
  const size_t piece_bytes_;
  ScratchPool scratch_;
};

}  // namespace trainyard
