// The generators behind MakeSchedule, which checks their arguments: the shape is within the limits and supported by the
// kind. For all generators but OneStageSchedule, the shape has several stages.
#pragma once

#include "plan/pipeline_schedule.h"

namespace trainyard {

// For pipelines of one stage: a micro-batch runs forward and then backward before the next one begins.
PipelineSchedule OneStageSchedule(const PipelineShape& shape);
PipelineSchedule GpipeSchedule(const PipelineShape& shape);
PipelineSchedule OneForwardOneBackwardSchedule(const PipelineShape& shape);

// The micro-batches of a step are divided into rounds of equal size. A round has at least as many micro-batches as
// there are stages, unless the step has fewer. All micro-batches of a round run through a chunk before the next chunk
// begins.
struct InterleavedRounds {
  int rounds = 0;
  int per_round = 0;  // micro-batches; 0: they cannot be divided
  // False: the schedule would deadlock. If a round has k micro-batches more than there are stages, the last stage sends
  // k packets before the first stage needs them. When the activations of a round meet the gradients of the one before
  // it, both links are full, and the two stages wait for each other.
  bool has_room = false;

  bool valid() const { return per_round > 0 && has_room; }
};
InterleavedRounds RoundsOf(const PipelineShape& shape);
// REQUIRES: RoundsOf(shape).valid().
PipelineSchedule InterleavedSchedule(const PipelineShape& shape);

PipelineSchedule ZeroBubbleSchedule(const PipelineShape& shape, const SimulatedOptions& options);
PipelineSchedule SimulatedSchedule(const PipelineShape& shape, const SimulatedOptions& options);

}  // namespace trainyard
