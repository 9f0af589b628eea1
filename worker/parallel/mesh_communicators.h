// The groups that one rank of a mesh communicates in.
#pragma once

#include "worker/collectives/communicator.h"
#include "worker/collectives/group.h"

namespace trainyard {

// Never null except where a comment says so; a group of one rank has a communicator of one. Groups with the same
// members may be one object, so that their operations have one order.
struct MeshCommunicators {
  Communicator* job = nullptr;        // all ranks
  Communicator* data = nullptr;       // the data ranks that hold the same part of the model: dp_replicate x dp_shard
  Communicator* shard = nullptr;      // dp_shard
  Communicator* replicate = nullptr;  // dp_replicate
  Communicator* tensor = nullptr;     // the ranks that divide each layer among them; null: only this rank
  // The holders of the two copies of a tied embedding, the first stage first; null: this rank's stage has no copy, or
  // the only one.
  Communicator* tied = nullptr;
  // May be null: neighbours within the shard group, each of which keeps a part of a unit after forward. Backward
  // gathers the unit from these parts.
  Communicator* reshard = nullptr;
};

// `groups` must outlive the result. `reshards`: units are resharded to groups.reshard.
inline MeshCommunicators CommunicatorsOf(const MeshGroups& groups, bool reshards = false) {
  return {.job = groups.world,
          .data = groups.data,
          .shard = groups.shard,
          .replicate = groups.replicate,
          .tensor = groups.tensor,
          .tied = groups.tied,
          .reshard = reshards ? groups.reshard : nullptr};
}

}  // namespace trainyard
