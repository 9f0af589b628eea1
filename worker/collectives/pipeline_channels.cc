#include "worker/collectives/pipeline_channels.h"

#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<OwnedPipelineChannels> JoinPipeline(const Mesh& mesh, bool wraps, const GroupOptions& options) {
  const std::vector<int> stages = mesh.Peers(options.rank, Axis::kPipeline);
  const int num_stages = static_cast<int>(stages.size());
  OwnedPipelineChannels joined;
  const auto join = [&](const char* name, int from, int to) -> absl::StatusOr<Channel*> {
    ChannelOptions channel{.group = options, .from = from, .to = to};
    channel.group.name = name;
    ASSIGN_OR_RETURN(std::unique_ptr<Channel> opened, NewChannel(channel));
    return joined.owned.emplace_back(std::move(opened)).get();
  };
  // All ranks join in the order of the stages, so that no two wait for each other.
  for (int stage = 0; num_stages > 1 && stage < (wraps ? num_stages : num_stages - 1); ++stage) {
    const int below = stages[static_cast<size_t>(stage)];
    const int above = stages[static_cast<size_t>((stage + 1) % num_stages)];
    if (options.rank != below && options.rank != above) continue;
    ASSIGN_OR_RETURN(Channel * activations, join("activations", below, above));
    ASSIGN_OR_RETURN(Channel * gradients, join("gradients", above, below));
    PipelineChannels& own = joined.channels;
    (options.rank == below ? own.to_next : own.from_previous) = activations;
    (options.rank == below ? own.from_next : own.to_previous) = gradients;
  }
  return joined;
}

}  // namespace trainyard
