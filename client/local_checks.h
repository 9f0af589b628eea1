// What only the machine that trains can tell of a job: whether its text is there and long enough, whether its memory
// holds the model. Done by `run` and `validate` where that machine is this one, so that a mistake is told at once, with
// its place in the file; the trainer checks all of it again.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

// Looks at no more files than it takes to know that there is enough text.
void CheckText(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Whether train.model.init_from is there and may be read: a safetensors file, or a checkpoint's folder.
void CheckInitialWeights(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// The least that all ranks together take: weights, gradients and two moments. `machine_bytes` 0: not known.
void CheckMemory(const v1::JobSpec& spec, uint64_t machine_bytes, const Positions& positions, Problems* problems);

// Of this machine; 0 when it cannot be told.
uint64_t MachineMemoryBytes();

}  // namespace trainyard::client
