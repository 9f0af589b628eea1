#include "worker/parallel/parallelize.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/parallel/group_plan.h"

namespace trainyard {
namespace {

absl::Status CheckAxes(const Mesh& mesh) {
  for (Axis axis : {Axis::kPipeline, Axis::kContext, Axis::kTensor}) {
    if (mesh.Size(axis) == 1) continue;
    return absl::UnimplementedError(absl::StrCat("mesh axis ", AxisName(axis), " is ", mesh.Size(axis),
                                                 "; only dp_replicate and dp_shard may be more than 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCommunicators(const Mesh& mesh, const MeshCommunicators& communicators) {
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
  return absl::OkStatus();
}

absl::Status CheckStrategy(const Mesh& mesh, Strategy strategy) {
  if (strategy != Strategy::kDdp || mesh.Size(Axis::kShard) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ddp shards nothing, but mesh axis dp_shard is ", mesh.Size(Axis::kShard)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const ParallelOptions& options) {
  RETURN_IF_ERROR(CheckAxes(mesh));
  RETURN_IF_ERROR(CheckCommunicators(mesh, communicators));
  RETURN_IF_ERROR(CheckStrategy(mesh, options.data.strategy));
  // Data parallelism comes last, around the whole computation of a unit, so that a unit is gathered once for both
  // halves of a backward that recomputes it.
  std::unique_ptr<UnitRunner> runner = ApplyRecompute(options.recompute, FirstBackwardUnit(model));
  return ApplyDataParallel(model, communicators, options.data, options.update, std::move(runner));
}

}  // namespace trainyard
