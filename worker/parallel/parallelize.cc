#include "worker/parallel/parallelize.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const DataParallelOptions& options) {
  for (Axis axis : {Axis::kPipeline, Axis::kContext, Axis::kTensor}) {
    if (mesh.Size(axis) != 1) {
      return absl::UnimplementedError(absl::StrCat("mesh axis ", AxisName(axis), " is ", mesh.Size(axis),
                                                   "; only dp_replicate and dp_shard may be more than 1"));
    }
  }
  struct Side {
    const char* name;
    int ranks;
    const Communicator& communicator;
  };
  for (const Side& side : {Side{"the job", mesh.world_size(), *communicators.job},
                           Side{"the data ranks", mesh.num_data_ranks(), *communicators.data},
                           Side{"dp_shard", mesh.Size(Axis::kShard), *communicators.shard},
                           Side{"dp_replicate", mesh.Size(Axis::kReplicate), *communicators.replicate}}) {
    if (side.ranks == side.communicator.world_size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the mesh holds ", side.ranks, " ranks in ", side.name,
                                                   ", its communicator ", side.communicator.world_size()));
  }
  if (options.strategy == Strategy::kDdp && mesh.Size(Axis::kShard) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ddp shards nothing, but mesh axis dp_shard is ", mesh.Size(Axis::kShard)));
  }

  return NewDataParallel(model, communicators, options);
}

}  // namespace trainyard
