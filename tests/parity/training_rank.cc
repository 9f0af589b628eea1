#include "tests/parity/training_rank.h"

#include <ATen/core/grad_mode.h>

#include "common/clock.h"
#include "common/status_macros.h"
#include "models/model_part.h"
#include "worker/model/model_factory.h"

namespace trainyard {

void EnlargeFrozen(const TrainingCase& training, Model& model) {
  c10::NoGradGuard no_grad;
  if (!training.lora) return;
  for (const NamedTensor& parameter : model.parameters()) {
    at::Tensor tensor = parameter.tensor;
    if (!tensor.requires_grad() && tensor.dim() == 2) tensor.mul_(15);
  }
}

absl::StatusOr<std::unique_ptr<TrainingRank>> MakeTrainingRank(const PoolRank& rank, const TrainingCase& training) {
  const Mesh& mesh = rank.mesh;
  const int stage = mesh.Coordinate(rank.rank, Axis::kPipeline), stages = mesh.Size(Axis::kPipeline);
  const int tensor_rank = mesh.Coordinate(rank.rank, Axis::kTensor), tensor_size = mesh.Size(Axis::kTensor);
  const int chunks = static_cast<int>(training.chunks);
  auto made = std::make_unique<TrainingRank>(rank, training);
  ASSIGN_OR_RETURN(made->channels, JoinPipeline(mesh, /*wraps=*/chunks > 1, rank.options));
  made->delayed_channels =
      std::make_unique<DelayedChannels>(made->channels.channels, rank.rank, training.link_delay_us);
  if (tensor_size > 1) {
    made->tensor_group =
        std::make_unique<CommunicatorTensorGroup>(*made->groups.communicators().tensor, Clock::GetSteadyClock());
  }
  ASSIGN_OR_RETURN(const ModelPart part, PartOfRank(training.model(), {.stage = stage,
                                                                       .stages = stages,
                                                                       .chunks_per_rank = chunks,
                                                                       .tensor_rank = tensor_rank,
                                                                       .tensor_size = tensor_size,
                                                                       .divides_sequence = training.sequence}));
  // Only data rank 0 starts with the right weights; Parallelize must send them to the other data ranks.
  const uint64_t seed = mesh.DataRank(rank.rank) == 0 ? kTrainingSeed : 0;
  ASSIGN_OR_RETURN(made->model, NewModelPart(training.model(), part, seed, training.type, made->tensor_group.get()));
  if (training.lora) {
    made->model->Materialize();
    EnlargeFrozen(training, *made->model);
  }
  ParallelOptions options = training.options();
  // As in the trainer, a pipeline does not reduce each micro-batch, because several are in flight together.
  options.data.reduce_every_micro_batch = options.data.reduce_every_micro_batch && stages == 1;
  ASSIGN_OR_RETURN(made->strategy, Parallelize(*made->model, mesh, made->groups.communicators(), options));
  const PipelineOptions pipeline{
      .schedule = training.schedule, .stage = stage, .stages = stages, .chunks_per_rank = chunks};
  made->executor =
      std::make_unique<PipelineExecutor>(pipeline, *made->model, *made->strategy, made->delayed_channels->channels());
  made->reports_losses = made->executor->has_losses() && tensor_rank == 0;
  return made;
}

}  // namespace trainyard
