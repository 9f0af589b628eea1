// The rules of parallel.tensor, parallel.pipeline and parallel.sequence: whether the ranks, the model and the batch can
// be divided as the job requests, and what cannot be combined with such a division. Pure.
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// `ranks` 0: unknown. As for ValidateJob, defaults are not applied yet.
void CheckModelParallel(const v1::JobSpec& spec, uint64_t ranks, const Positions& positions, Problems* problems);

// The number of data ranks; 0 if it is unknown, because a size is missing, out of range, or does not divide the ranks.
uint64_t KnownDataRanks(const v1::Parallel& parallel, uint64_t ranks, const Positions& positions);

}  // namespace trainyard
