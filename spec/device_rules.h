// The settings of a job that do not run on a GPU. Pure.
#pragma once

#include <string>

#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Returns why a job without resources.device trains on the CPU even if its hosts have GPUs, for example
// "a probe measures the CPU unless resources.device is cuda"; empty if the job may use GPUs. `spec` is resolved, except
// for the keys that hosts decide.
std::string WhyNotOnGpu(const v1::JobSpec& spec);

// Returns whether the job needs a GPU with bf16, that is with compute capability 8 or above.
bool NeedsBfloat16(const v1::JobSpec& spec);

}  // namespace trainyard
