#include "worker/trainer/rank_strategy.h"

#include <algorithm>

#include "common/status_macros.h"
#include "worker/mesh/mesh.h"
#include "worker/parallel/parallelize.h"
#include "worker/parallel/stream_waits.h"

namespace trainyard {
namespace {

absl::StatusOr<PipelineLayout> PipelineOf(const TrainConfig::Parallel& parallel) {
  ASSIGN_OR_RETURN(const ScheduleKind schedule, ScheduleKindOf(parallel.schedule), << "parallel.pipeline.schedule");
  return PipelineLayout{.schedule = schedule, .chunks_per_rank = parallel.chunks_per_rank, .split = parallel.split};
}

absl::StatusOr<ParallelOptions> OptionsOf(const StartOrder& order, Strategy strategy, const Precision& precision) {
  const TrainConfig& config = order.config;
  const TrainConfig::Parallel& parallel = config.parallel;
  // Decides the default of parallel.reduce_scatter, which is false for zero1 over sockets.
  const bool uses_sockets =
      order.local_world_size != order.world_size || config.shared_memory == TrainConfig::Switch::kOff;
  ASSIGN_OR_RETURN(RecomputeMode recompute, RecomputeModeOf(parallel.recompute), << "parallel.recompute");
  const UpdateOptions update{.optimizer = {.beta1 = config.optimizer.beta1,
                                           .beta2 = config.optimizer.beta2,
                                           .eps = config.optimizer.eps,
                                           .weight_decay = config.optimizer.weight_decay,
                                           .clip_value = config.optimizer.clip_value,
                                           .seed = config.seed},
                             .clip_norm = config.optimizer.clip_norm,
                             .loss_scale = LossScalingOf(config),
                             .tile_elements = parallel.optimizer_tile_elements};
  const DataParallelOptions data{
      .strategy = strategy,
      .precision = precision,
      .bucket_elements = parallel.bucket_elements,
      .overlap = parallel.overlap,
      .reduce_scatter = parallel.reduce_scatter.value_or(strategy != Strategy::kZero1 || !uses_sockets),
      // The micro-batches of a pipeline are in flight together, and their gradients are added up first.
      .reduce_every_micro_batch = parallel.reduce_every_micro_batch && parallel.stages == 1,
      .reshard_after_forward = parallel.reshard_after_forward,
      .prefetch_elements = parallel.prefetch_elements,
      .reuse_elements = parallel.reuse_elements,
      .max_live_elements = parallel.max_live_elements,
      .persist_elements = parallel.persist_elements,
      .gather_bucket_elements = parallel.gather_bucket_elements,
      .all_gather = parallel.all_gather,
      .offload = {.optimizer = parallel.offload_optimizer, .parameters = parallel.offload_parameters}};
  return ParallelOptions{
      .recompute = {.mode = recompute, .every = parallel.recompute_every}, .data = data, .update = update};
}

LrSchedule::Kind KindFrom(TrainConfig::LrScheduleKind kind) {
  switch (kind) {
    case TrainConfig::LrScheduleKind::kLinear:
      return LrSchedule::Kind::kLinear;
    case TrainConfig::LrScheduleKind::kConstant:
      return LrSchedule::Kind::kConstant;
    case TrainConfig::LrScheduleKind::kInverseSqrt:
      return LrSchedule::Kind::kInverseSqrt;
    case TrainConfig::LrScheduleKind::kWsd:
      return LrSchedule::Kind::kWsd;
    case TrainConfig::LrScheduleKind::kCosine:
      break;
  }
  return LrSchedule::Kind::kCosine;
}

LrSchedule::Decay DecayFrom(TrainConfig::DecayShape shape) {
  if (shape == TrainConfig::DecayShape::kLinear) return LrSchedule::Decay::kLinear;
  return shape == TrainConfig::DecayShape::kSqrt ? LrSchedule::Decay::kSqrt : LrSchedule::Decay::kCosine;
}

}  // namespace

absl::StatusOr<Mesh> MeshOf(const StartOrder& order) {
  const TrainConfig::Parallel& parallel = order.config.parallel;
  ASSIGN_OR_RETURN(Strategy strategy, StrategyOf(parallel.strategy));
  const int ranks_per_replica = parallel.stages * parallel.tensor;
  ASSIGN_OR_RETURN(MeshShape shape,
                   DataMesh(strategy, order.world_size / ranks_per_replica, parallel.shard, parallel.replicate));
  shape.pp = parallel.stages;
  shape.tp = parallel.tensor;
  return Mesh::Create(shape, order.world_size);
}

absl::StatusOr<Precision> PrecisionOf(const TrainConfig& config) {
  const TrainConfig::Precision& names = config.precision;
  return ParsePrecision(PrecisionNames{.param = names.param,
                                       .reduce = names.reduce,
                                       .output = names.output,
                                       .master = names.master,
                                       .state = names.state});
}

LossScaleConfig LossScalingOf(const TrainConfig& config) {
  const TrainConfig::LossScale& scale = config.loss_scale;
  return {.initial = scale.initial,
          .window = scale.window,
          .backoff = scale.backoff,
          .hysteresis = scale.hysteresis,
          .min = scale.min,
          .dynamic = !scale.is_static};
}

LrSchedule LrScheduleOf(const TrainConfig& config) {
  const TrainConfig::LrSchedule& schedule = config.lr_schedule;
  return {.kind = KindFrom(schedule.kind),
          .peak = config.optimizer.lr,
          .warmup_steps = schedule.warmup_steps,
          .total_steps = config.steps,
          .min_ratio = schedule.min_ratio,
          .zero_based = schedule.zero_based,
          .decay_steps = schedule.decay_steps,
          .decay = DecayFrom(schedule.decay),
          .timescale = std::max<uint64_t>(schedule.timescale, 1)};
}

absl::StatusOr<std::unique_ptr<Model>> MakePart(const StartOrder& order, const RankDevice& device,
                                                TensorGroup* tensor_group) {
  const TrainConfig& config = order.config;
  ASSIGN_OR_RETURN(const Mesh mesh, MeshOf(order));
  ASSIGN_OR_RETURN(const PipelineLayout pipeline, PipelineOf(config.parallel));
  ASSIGN_OR_RETURN(at::ScalarType master, TypeFromName(config.precision.master), << "train.precision.master");
  ASSIGN_OR_RETURN(
      std::unique_ptr<Model> model,
      DivideModel(
          {.sizes = config.model, .seed = config.seed, .type = master, .divides_sequence = config.parallel.sequence},
          mesh, order.rank, pipeline, tensor_group),
      << "parallel");
  if (!device.device.is_cpu()) model->PlaceOn(device.device);
  RETURN_IF_ERROR(Freeze(config.freeze, *model)) << "train.freeze";
  return model;
}

absl::Status CheckOffload(const StartOrder& order, const Model& model) {
  const TrainConfig::Parallel& parallel = order.config.parallel;
  ASSIGN_OR_RETURN(Mesh mesh, MeshOf(order));
  ASSIGN_OR_RETURN(Strategy strategy, StrategyOf(parallel.strategy));
  ASSIGN_OR_RETURN(Precision precision, PrecisionOf(order.config), << "train.precision");
  const bool shards = ShardingOf(strategy).parameters == Sharding::kSharded;
  auto size = [](at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); };
  int64_t trained = 0;
  for (const NamedTensor& parameter : model.parameters()) {
    if (parameter.tensor.requires_grad()) trained += parameter.tensor.numel();
  }
  const int64_t ranks = mesh.Size(Axis::kShard), frozen = model.num_elements() - trained;
  const Offload offload{.optimizer = parallel.offload_optimizer, .parameters = parallel.offload_parameters && shards};
  const ElementSizes sizes{
      .weight = size(precision.param), .master = size(precision.master), .moment = size(precision.state)};
  const ElementSizes frozen_sizes{
      .weight = sizes.weight, .master = precision.keeps_masters() ? sizes.master : 0, .moment = 0};
  const int64_t bytes =
      HostBytes(offload, trained / ranks, sizes) + HostBytes(offload, shards ? frozen / ranks : frozen, frozen_sizes);
  return bytes == 0 ? absl::OkStatus() : CheckHostMemory(bytes, order.local_world_size, AvailableHostBytes());
}

absl::Status MakeParallel(const StartOrder& order, bool loads_state, Rank& rank) {
  const TrainConfig& config = order.config;
  ASSIGN_OR_RETURN(Strategy strategy, StrategyOf(config.parallel.strategy));
  ASSIGN_OR_RETURN(Mesh mesh, MeshOf(order));
  const int data_rank = mesh.DataRank(order.rank), num_data_ranks = mesh.num_data_ranks();
  rank.deal = DealStep(config.batch_global, config.batch_micro, data_rank, num_data_ranks);
  if (rank.inputs.evaluation != nullptr) {
    rank.evaluation_deal = DealStep(rank.inputs.evaluation->num_batches(), /*micro=*/1, data_rank, num_data_ranks);
  }
  if (config.reverse_micro_batches) std::reverse(rank.deal.micro_batches.begin(), rank.deal.micro_batches.end());
  const MeshCommunicators communicators =
      CommunicatorsOf(*rank.groups, config.parallel.reshard_to > 1 && config.parallel.stages == 1);
  ASSIGN_OR_RETURN(Precision precision, PrecisionOf(config), << "train.precision");
  ASSIGN_OR_RETURN(ParallelOptions options, OptionsOf(order, strategy, precision));
  if (config.events) rank.events = std::make_unique<EventLog>(SteadyNanoseconds);
  options.data.events = rank.events.get();
  options.data.ledger = rank.ledger;
  rank.stream_waits = std::make_unique<StreamWaits>(rank.device.device);
  options.data.stream_waits = rank.stream_waits.get();
  options.data.copies_initial_values = !loads_state;
  ASSIGN_OR_RETURN(rank.strategy, Parallelize(*rank.model, mesh, communicators, options));
  ASSIGN_OR_RETURN(const PipelineLayout pipeline, PipelineOf(config.parallel));
  rank.executor =
      NewExecutor(mesh, order.rank, pipeline, *rank.model, *rank.strategy, rank.channels.channels, rank.events.get());
  rank.reports_losses = rank.executor->has_losses() && mesh.Coordinate(order.rank, Axis::kTensor) == 0;
  return absl::OkStatus();
}

}  // namespace trainyard
