#include "worker/parallel/parallelize.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "models/model_part.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/group_plan.h"

namespace trainyard {
namespace {

absl::Status CheckAxes(const Model& model, const Mesh& mesh) {
  if (mesh.Size(Axis::kContext) > 1) {
    return absl::UnimplementedError(
        absl::StrCat("mesh axis ", AxisName(Axis::kContext), " is ", mesh.Size(Axis::kContext), "; it must be 1"));
  }
  const ModelPart& part = model.part();
  const bool has_all_stages = part.embeds && part.heads;
  if (part.tensor_size != mesh.Size(Axis::kTensor) || has_all_stages != (mesh.Size(Axis::kPipeline) == 1)) {
    return absl::InvalidArgumentError(absl::StrCat("the model is not the part of a rank in the mesh ", mesh.ToString(),
                                                   ": create it by DivideModel with this mesh"));
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
                                                   ", but its communicator has ", side.communicator.world_size()));
  }
  return absl::OkStatus();
}

absl::Status CheckStrategy(const Mesh& mesh, Strategy strategy) {
  if (strategy != Strategy::kDdp || mesh.Size(Axis::kShard) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ddp shards nothing, but mesh axis dp_shard is ", mesh.Size(Axis::kShard)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> DivideModel(const ModelSource& source, const Mesh& mesh, int rank,
                                                   const PipelineLayout& pipeline, TensorGroup* tensor_group) {
  ASSIGN_OR_RETURN(const ModelPart part, PartOfRank(source.sizes, {.stage = mesh.Coordinate(rank, Axis::kPipeline),
                                                                   .stages = mesh.Size(Axis::kPipeline),
                                                                   .chunks_per_rank = pipeline.chunks_per_rank,
                                                                   .split = pipeline.split,
                                                                   .tensor_rank = mesh.Coordinate(rank, Axis::kTensor),
                                                                   .tensor_size = mesh.Size(Axis::kTensor),
                                                                   .divides_sequence = source.divides_sequence}));
  return NewModelPart(source.sizes, part, source.seed, source.type, tensor_group);
}

absl::StatusOr<std::unique_ptr<DataParallel>> Parallelize(Model& model, const Mesh& mesh,
                                                          const MeshCommunicators& communicators,
                                                          const ParallelOptions& options) {
  RETURN_IF_ERROR(CheckAxes(model, mesh));
  RETURN_IF_ERROR(CheckCommunicators(mesh, communicators));
  RETURN_IF_ERROR(CheckStrategy(mesh, options.data.strategy));
  // Data parallelism comes last, around the whole computation of a unit, so that a unit is gathered once for
  // its recomputed forward and its backward.
  std::unique_ptr<UnitRunner> runner = ApplyRecompute(options.recompute, FirstBackwardUnit(model));
  return ApplyDataParallel(model, communicators, options.data, options.update, std::move(runner));
}

std::unique_ptr<PipelineExecutor> NewExecutor(const Mesh& mesh, int rank, const PipelineLayout& pipeline, Model& model,
                                              DataParallel& strategy, const PipelineChannels& channels,
                                              EventLog* events) {
  const PipelineOptions options{.schedule = pipeline.schedule,
                                .stage = mesh.Coordinate(rank, Axis::kPipeline),
                                .stages = mesh.Size(Axis::kPipeline),
                                .chunks_per_rank = pipeline.chunks_per_rank,
                                .events = events};
  return std::make_unique<PipelineExecutor>(options, model, strategy, channels);
}

}  // namespace trainyard
