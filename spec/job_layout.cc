#include "spec/job_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/model_part.h"
#include "plan/schedule_simulation.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"

namespace trainyard {
namespace {

// A simulation of this many forwards takes about a millisecond.
constexpr uint64_t kSimulatedForwardsMax = 1 << 13;

int ToInt(uint64_t value) { return static_cast<int>(std::min<uint64_t>(value, std::numeric_limits<int>::max())); }

// Returns the bubble of equal chunks, and upper bounds of the numbers in flight, without a simulation.
PipelineEstimate BoundsOf(ScheduleKind kind, const PipelineShape& shape) {
  const int64_t idle = shape.stages - 1, forwards = int64_t{shape.chunks_per_rank} * shape.micro_batches;
  PipelineEstimate bounds{.bubble = static_cast<double>(idle) / static_cast<double>(forwards + idle), .in_flight = {}};
  for (int64_t stage = 0; stage < shape.stages; ++stage) {
    int64_t count = forwards;
    if (kind == ScheduleKind::kInterleaved) {
      // The forwards before the first backward (InterleavedSchedule): those of the warm-up, and one more. The warm-up
      // contains a round for each chunk but the last, and a round has fewer than 2 x stages micro-batches.
      count = (shape.chunks_per_rank - 1) * 2 * int64_t{shape.stages} + 2 * (idle - stage) + 1;
    } else if (kind == ScheduleKind::kOneForwardOneBackward) {
      count = shape.stages - stage;
    } else if (kind != ScheduleKind::kGpipe) {
      count = shape.stages;
    }
    bounds.in_flight.push_back(static_cast<int>(std::min(count, forwards)));
  }
  return bounds;
}

}  // namespace

JobLayout LayoutOf(const v1::Parallel& parallel, uint64_t ranks) {
  return {.ranks = std::max<uint64_t>(ranks, 1),
          .stages = std::max(parallel.pipeline().stages(), 1u),
          .tensor = std::max(parallel.tensor(), 1u)};
}

JobLayout LayoutOf(const v1::JobSpec& spec) { return LayoutOf(spec.parallel(), spec.resources().ranks()); }

ScheduleKind KindOf(v1::PipelineSchedule schedule) {
  switch (schedule) {
    case v1::PIPELINE_SCHEDULE_GPIPE:
      return ScheduleKind::kGpipe;
    case v1::PIPELINE_SCHEDULE_INTERLEAVED:
      return ScheduleKind::kInterleaved;
    case v1::PIPELINE_SCHEDULE_ZERO_BUBBLE:
      return ScheduleKind::kZeroBubble;
    case v1::PIPELINE_SCHEDULE_SIMULATED:
      return ScheduleKind::kSimulated;
    default:
      return ScheduleKind::kOneForwardOneBackward;
  }
}

uint64_t ChunksPerRank(const v1::Pipeline& pipeline) {
  if (pipeline.stages() <= 1) return 1;
  if (pipeline.has_chunks_per_rank()) return pipeline.chunks_per_rank();
  return pipeline.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED ? 2 : 1;
}

PipelinePlan PlanPipeline(const v1::JobSpec& spec) {
  const v1::Pipeline& pipeline = spec.parallel().pipeline();
  const JobLayout layout = LayoutOf(spec);
  const v1::Batch& batch = spec.train().batch();
  const DealShape deal = DealShapeOf(batch.global_size(), std::max(batch.micro(), 1u), layout.data_ranks());
  PipelinePlan plan{.kind = KindOf(pipeline.schedule()),
                    .shape = {.stages = ToInt(layout.stages),
                              .chunks_per_rank = ToInt(ChunksPerRank(pipeline)),
                              .micro_batches = ToInt(deal.rounds)},
                    .blocks = {},
                    .bubble = 0,
                    .in_flight = {1}};
  const int64_t layers = SizesOfModel(spec.train().model()).layers;
  absl::StatusOr<std::vector<int64_t>> blocks =
      SplitBlocks(layers, plan.shape.model_chunks(), {pipeline.split().begin(), pipeline.split().end()});
  if (layout.stages == 1 || !blocks.ok()) {
    plan.blocks = {layers};
    return plan;
  }
  plan.blocks = *std::move(blocks);
  PipelineEstimate estimate = EstimatePipeline(plan.kind, plan.shape, plan.blocks);
  plan.bubble = estimate.bubble;
  plan.in_flight = std::move(estimate.in_flight);
  return plan;
}

PipelineEstimate EstimatePipeline(ScheduleKind kind, const PipelineShape& shape, const std::vector<int64_t>& blocks) {
  const uint64_t forwards = static_cast<uint64_t>(shape.model_chunks()) * static_cast<uint64_t>(shape.micro_batches);
  if (forwards > kSimulatedForwardsMax) return BoundsOf(kind, shape);
  PipelineCosts costs;
  if (!blocks.empty()) {
    costs.forward.assign(blocks.begin(), blocks.end());
    costs.backward_input = costs.backward_weight = costs.forward;
    costs.backward.clear();
    for (const int64_t each : blocks) costs.backward.push_back(2.0 * static_cast<double>(each));
  }
  const absl::StatusOr<PipelineSchedule> schedule = MakeSchedule(kind, shape);
  if (schedule.ok()) {
    absl::StatusOr<PipelineSimulation> simulation = Simulate(*schedule, costs);
    if (simulation.ok()) return {.bubble = simulation->bubble, .in_flight = std::move(simulation->peak_in_flight)};
  }
  return {.bubble = 0, .in_flight = std::vector<int>(static_cast<size_t>(shape.stages), 1)};
}

std::string BatchProduct(uint64_t micro, uint64_t micro_batches, uint64_t data_ranks) {
  return absl::StrCat(micro, " x ", micro_batches, " x ", data_ranks, " = ", micro * micro_batches * data_ranks);
}

}  // namespace trainyard
