// Sets every default and every `auto` of a job that can be decided without knowing its hosts, and returns the reasons.
// Keys that depend on the hosts (device, unless the job cannot use GPUs; threads_per_rank, product_kernels,
// network.interface and network.shared_memory) stay unset, and their reasons say how they will be decided. Pure.
#pragma once

#include <string>
#include <vector>

#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// If checkpoint.dir is not set, uses a folder below `default_run_root`, unless that is empty. Removes the keys of
// training from a job that runs a command or a probe. REQUIRES: ValidateJob found no error in `spec`.
std::vector<v1::ResolvedKey> ResolveJob(const std::string& job_id, const std::string& default_run_root,
                                        v1::JobSpec* spec);

}  // namespace trainyard
