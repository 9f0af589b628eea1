// Sums over a group of several places with as many ranks each, in rank order [Note: one order of sums]. Each place adds
// its ranks to the sum of the places before it and hands it on; the last one rounds it. In pieces, so that all places
// work at the same time and results go back while later pieces still come:
//
//   place 0   sums 0   sums 1   sums 2   ...
//   place 1            adds 0   adds 1   adds 2   ...
//   place 2                     ends 0   ends 1   ends 2 ...   sent back to 1, which keeps it and sends it to 0
//
// Every element crosses each step between places once in each direction, which is no more than a ring takes; sums of 16
// bits go up in fp32. Summing each place first and then the places would be the order of another layout.
//
// Belongs to the thread of its communicators. Possible errors: those of their operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "absl/status/status.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/scratch.h"

namespace trainyard {

class PlaceChain {
 public:
  // `across`: the ranks that have this one's number in each place. Not owned.
  PlaceChain(PeerCommunicator& across, size_t piece_bytes) : across_(across), piece_bytes_(piece_bytes) {}

  // `raw`: what each rank of this place contributes, one after another; `out` becomes the sum over all places.
  absl::Status AllReduceSum(const at::Tensor& out, const at::Tensor& raw);
  // The same where each contribution is a part for each place, one after another; `out` becomes this place's.
  absl::Status ReduceScatterSum(const at::Tensor& out, const at::Tensor& raw);

 private:
  PeerCommunicator& across_;
  const size_t piece_bytes_;
  ScratchPool scratch_;
};

}  // namespace trainyard
