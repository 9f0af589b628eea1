// What a job may ask for that is not computed on a GPU. Pure.
#pragma once

#include <string>

#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Why a job that leaves resources.device open computes on the CPU whatever its hosts have: "parallel.offload is for the
// CPU in this version". Empty: nothing speaks against a GPU. `spec` is resolved, but for what is left to hosts.
std::string WhyNotOnGpu(const v1::JobSpec& spec);

// Whether a GPU must know bf16, which those before compute capability 8 do not.
bool NeedsBfloat16(const v1::JobSpec& spec);

}  // namespace trainyard
