// How long a step of a job takes in a layout, from a few figures of the machines. The numbers rank layouts; they are no
// promise: measure the first of them.
//
// Matrix products run at the stated share of the peak, or as fast as the weights are read; operations between ranks are
// rings (link_cost.h). They overlap with computation as the trainer's do (docs/decisions/0003-data-parallel.md): the
// reduction of gradients with backward, gathers of sharded parameters with the block before, the gather of ZeRO-1 and 2
// with the next forward; those of tensor ranks and of a pipeline's gradients overlap with nothing. Pure.
#pragma once

#include "planner/layout.h"
#include "planner/machines.h"
#include "planner/model_work.h"

namespace trainyard::planner {

// Seconds of a step, as shares of the time of the slowest rank.
struct StepCost {
  double seconds = 0;        // the sum of those below
  double compute = 0;        // products of forward and backward
  double recompute = 0;      // forward a second time
  double communication = 0;  // what computation does not hide
  double bubble = 0;         // a stage waits for others
  double update = 0;         // of the optimizer
  double hidden = 0;         // communication behind computation; not part of the sum

  double communication_share() const { return seconds > 0 ? communication / seconds : 0; }
};

// If the data ranks have unequal numbers of micro-batches, they wait for the one with the most. REQUIRES: layout.micro
// divides work.global, layout.stages x chunks <= work.layers.
StepCost CostOfStep(const ModelWork& work, const Pool& pool, const Layout& layout);

}  // namespace trainyard::planner
