// Checks of a job that must run on the machine that trains it: whether its data and initial weights exist, whether its
// text is long enough, and whether the model fits into memory. Verbs that read a job file make these checks if this
// machine trains the job, so that mistakes are reported immediately with their place in the file. The trainer repeats
// the checks of files.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

// Checks that all data files exist and are readable, and that the files of train.data.text together are long enough if
// samples are made of bytes. Stops reading folders once enough text is found.
void CheckText(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Checks that train.model.init_from exists and is readable: a safetensors file, a checkpoint or a folder of
// transformers; and that train.lora.path has weights.
void CheckInitialWeights(const v1::JobSpec& spec, const Positions& positions, Problems* problems);

// Checks that the machine has the memory that all ranks together need at least: weights, gradients and optimizer state,
// or, if the job requires GPUs, what is offloaded to the memory of the machine. Does nothing if `machine_bytes` is 0,
// which means that it is not known.
void CheckMemory(const v1::JobSpec& spec, uint64_t machine_bytes, const Positions& positions, Problems* problems);

// The memory of this machine; 0 if it cannot be determined.
uint64_t MachineMemoryBytes();

}  // namespace trainyard::client
