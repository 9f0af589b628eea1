// The runs of `trainctl parity`: a job in one process, and the same job under every strategy and division of the model,
// each with the smallest number of ranks with which this strategy or division has an effect. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

struct ParityVariant {
  std::string name;  // "fsdp, kept": parallel.data is fsdp, and parallel.reshard_after_forward is false
  v1::JobSpec spec;
};

struct ParityOptions {
  uint64_t steps = 20;
  std::string folder;  // contains the run folder of each variant
};

// The first variant is one process; the second is the same with the micro-batches of each step in reverse order, which
// shows how far apart two correct results are. `job` must be checked and have its preset applied. All variants
// have the buckets and the overlap of `job`; only the variant with the job's own layout has the other keys of
// `parallel`. All variants have the same micro-batches.
std::vector<ParityVariant> ParityVariants(const v1::JobSpec& job, const ParityOptions& options);

// The number of slots that the largest variant needs.
uint32_t ParitySlots(const std::vector<ParityVariant>& variants);

}  // namespace trainyard::client
