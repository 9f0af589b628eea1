// What `trainctl parity` runs: one job in one process, and the same job under every strategy, on as few ranks as each
// needs to show itself. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

struct ParityVariant {
  std::string name;  // "fsdp, kept" where the file would say data: fsdp, reshard_after_forward: false
  v1::JobSpec spec;
};

struct ParityOptions {
  uint64_t steps = 20;
  std::string folder;  // below it each variant has a run folder
};

// The first variant is one process, the second the same with each step's micro-batches in reverse: how far apart two
// right answers are. `job` is checked and has its preset; what it says of `parallel` is not used, but for buckets and
// overlap. All variants run micro-batches of one size, so that dropout falls alike.
std::vector<ParityVariant> ParityVariants(const v1::JobSpec& job, const ParityOptions& options);

// Slots that the largest of them needs.
uint32_t ParitySlots(const std::vector<ParityVariant>& variants);

}  // namespace trainyard::client
