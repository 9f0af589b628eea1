// Decides every default and every `auto` of a job that needs no host, and says why. What only a host can know
// (device, threads_per_rank, mkl_avx512, network.interface) stays unset and is told as such. Pure.
#pragma once

#include <string>
#include <vector>

#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// REQUIRES: ValidateJob found no error in `spec`. `default_run_root` is used when checkpoint.dir is not set; where it
// is empty too, checkpoint.dir stays unset. A probe keeps none of the keys of training.
std::vector<v1::ResolvedKey> ResolveJob(const std::string& job_id, const std::string& default_run_root,
                                        v1::JobSpec* spec);

}  // namespace trainyard
