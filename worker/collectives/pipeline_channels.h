// The channels of one rank to its neighbours in a pipeline: the ranks of the previous and the next stage with the same
// data rank and tensor rank. With several chunks per rank, the first stage is also the next one of the last stage.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/collectives/channel.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

// Null where there is no such neighbour.
struct PipelineChannels {
  Channel* from_previous = nullptr;  // activations
  Channel* to_next = nullptr;
  Channel* from_next = nullptr;  // gradients of the activations
  Channel* to_previous = nullptr;
};

struct OwnedPipelineChannels {
  std::vector<std::unique_ptr<Channel>> owned;  // in the order of their creation
  PipelineChannels channels;
};

// Returns when all neighbours have joined. `wraps`: the last stage sends activations to the first. `options`: name
// and members are ignored. Possible errors: those of NewChannel.
absl::StatusOr<OwnedPipelineChannels> JoinPipeline(const Mesh& mesh, bool wraps, const GroupOptions& options);

}  // namespace trainyard
