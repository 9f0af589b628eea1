// How the ranks of a job divide the model and the data. A rank has a stage, a data rank and a tensor rank; the stage
// changes slowest with the rank and the tensor rank fastest, as in worker/mesh/mesh.h. Pure.
//
//   stages 2 x data ranks 2 x tensor 2 = 8 ranks:   stage 0:  0 1 | 2 3    stage 1:  4 5 | 6 7
//
// A pipeline consists of the ranks of all stages that have the same data rank; they process the same micro-batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

struct JobLayout {
  uint64_t ranks = 1;
  uint64_t stages = 1;
  uint64_t tensor = 1;

  bool divides_model() const { return stages > 1 || tensor > 1; }
  // The ranks that share one copy of the model if the data strategy shards nothing.
  uint64_t model_ranks() const { return stages * tensor; }
  uint64_t data_ranks() const { return std::max<uint64_t>(ranks / model_ranks(), 1); }
  uint64_t stage_ranks() const { return std::max<uint64_t>(ranks / stages, 1); }
  uint64_t StageOf(uint64_t rank) const { return rank / stage_ranks(); }
  uint64_t DataRankOf(uint64_t rank) const { return rank % stage_ranks() / tensor; }
  uint64_t TensorRankOf(uint64_t rank) const { return rank % tensor; }
};

// Keys that are not set have their defaults. If CheckModelParallel refuses the sizes, data_ranks() has no
// meaning, nor has anything that is computed from it.
JobLayout LayoutOf(const v1::Parallel& parallel, uint64_t ranks);
// The layout of a job whose ranks are decided.
JobLayout LayoutOf(const v1::JobSpec& spec);

// An unset schedule is 1f1b.
ScheduleKind KindOf(v1::PipelineSchedule schedule);
// 1 if there is one stage.
uint64_t ChunksPerRank(const v1::Pipeline& pipeline);

// What the pipelines of a job do in one step.
struct PipelinePlan {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  PipelineShape shape;          // its micro-batches are those of the data rank that has the most
  std::vector<int64_t> blocks;  // of each model chunk
  double bubble = 0;            // the share of a step in which a rank has nothing to compute, averaged over the stages
  // For each stage, the most activations that it holds at the same time, counted once for each micro-batch and chunk.
  std::vector<int> in_flight;
};
// REQUIRES: `spec` trains and is resolved.
PipelinePlan PlanPipeline(const v1::JobSpec& spec);

struct PipelineEstimate {
  double bubble = 0;
  std::vector<int> in_flight;
};
// Simulates a step whose durations are proportional to the blocks of each model chunk (empty: equal), twice as long
// backward as forward. A step with very many actions is not simulated: its bubble is that of equal chunks,
// (p-1)/(vm+p-1) for p stages with v chunks each and m micro-batches, which is too large for zero_bubble and simulated,
// and the numbers in flight are upper bounds. A shape that MakeSchedule refuses has no bubble and one micro-batch in
// flight.
PipelineEstimate EstimatePipeline(ScheduleKind kind, const PipelineShape& shape,
                                  const std::vector<int64_t>& blocks = {});

// "8 x 32 x 4 = 1024": the micro-batch, the micro-batches of each pipeline, the data ranks, the sequences of a step.
std::string BatchProduct(uint64_t micro, uint64_t micro_batches, uint64_t data_ranks);

}  // namespace trainyard
