// How much memory one rank of a job needs, from its spec alone, so that a user learns before the job starts whether a
// model fits. Pure.
//
// The state (parameters, gradients, optimizer) is exact up to padding. Activations are those that our CPU kernels store
// for backward; LibTorch's operations, which run on GPUs, may store a little more. Not included: the runtime itself
// (LibTorch, CUDA, NCCL: about 0.3 GB on a CPU, 1 GB on a GPU), and copies of the state during a save.
#pragma once

#include <cstdint>
#include <vector>

#include "trainyard/v1/job.pb.h"

namespace trainyard {

// All numbers are bytes on the rank that needs the most, at the moment of a step when their sum is largest.
struct MemoryPlan {
  uint64_t parameters = 0;   // the weights for computation: this rank's shard, or all of them
  uint64_t gathered = 0;     // sharded state: parameters and gradients of the units that are whole at the same time
  uint64_t gradients = 0;    // the sums: this rank's shard, or all of them
  uint64_t optimizer = 0;    // moments, and masters if they are a second copy
  uint64_t activations = 0;  // stored for backward, for the micro-batches that are in flight at the same time
  uint64_t scores = 0;       // the logits (a score for each token of the vocabulary) and their gradient
  uint64_t links = 0;        // activations and gradients that were sent between pipeline stages and not yet used
  uint64_t host = 0;         // the part of the state that is offloaded; not included in the numbers above

  // What the rank needs on its device. If that is a CPU, `host` is in the same memory and must be added.
  uint64_t device_total() const { return parameters + gathered + gradients + optimizer + activations + scores + links; }
  bool operator==(const MemoryPlan&) const = default;
};

// The plan of the pipeline stage that needs the most on its device and host together. REQUIRES: the spec trains,
// ValidateJob accepts it, and its precision, ranks and micro-batch are resolved.
MemoryPlan PlanMemory(const v1::JobSpec& spec);

// The plan of each stage. REQUIRES: as for PlanMemory.
std::vector<MemoryPlan> PlanMemoryOfStages(const v1::JobSpec& spec);

}  // namespace trainyard
