// A group of several places with as many ranks each: shared memory inside each place, and between places a group of
// those with the same number there. Every element leaves a place once, by one of its ranks, instead of going round all
// ranks.
//
// An operation is a few operations of the two groups, one after another, carried out when it is waited for. Sums go
// from place to place in rank order (place_chain.h).
#pragma once

#include <cstddef>
#include <memory>

#include "worker/collectives/communicator.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/shared_memory_communicator.h"

namespace trainyard {

// `inside`: the ranks of this place; `across`: those with this rank's number in each place. The group's ranks are
// place by place: rank = across->rank() x inside->world_size() + inside->rank(). Sums travel in pieces of
// `piece_bytes`.
std::unique_ptr<Communicator> NewHostwiseCommunicator(std::unique_ptr<PlaceCommunicator> inside,
                                                      std::unique_ptr<PeerCommunicator> across, size_t piece_bytes);

}  // namespace trainyard
