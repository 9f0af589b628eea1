// A communicator for several places (group.h) with the same number of ranks each: shared memory inside each place, and
// between places one gloo group per local rank. Each element leaves a place once, through one of its ranks, instead of
// travelling around a ring of all ranks.
//
// An operation consists of a few operations of the two groups in sequence, and runs when it is waited for. Sums travel
// from place to place in rank order (place_chain.h).
#pragma once

#include <cstddef>
#include <memory>

#include "worker/collectives/communicator.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/shared_memory_communicator.h"

namespace trainyard {

// `inside`: the ranks of this place. `across`: the ranks with this rank's local number in each place. Ranks are
// numbered place by place: rank = across->rank() x inside->world_size() + inside->rank(). Sums travel in pieces of
// `piece_bytes`.
std::unique_ptr<Communicator> NewHostwiseCommunicator(std::unique_ptr<PlaceCommunicator> inside,
                                                      std::unique_ptr<PeerCommunicator> across, size_t piece_bytes);

}  // namespace trainyard
