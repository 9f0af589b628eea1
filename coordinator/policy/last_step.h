// The last step of a job: train.steps, or an earlier one if the ranks ended the job early. Pure.
#pragma once

#include <cstdint>

#include "trainyard/v1/store.pb.h"

namespace trainyard {

// Whether the rank has reported that it made every step of the job.
inline bool HasMadeAllSteps(const v1::RankRecord& rank, uint64_t steps) {
  return rank.finished() && !rank.stopped() && (rank.finished_step() >= steps || !rank.ended_early().empty());
}

// `first_rank`: the record of rank 0 in the newest group.
inline uint64_t LastStepOf(const v1::RankRecord& first_rank, uint64_t steps) {
  return HasMadeAllSteps(first_rank, steps) && !first_rank.ended_early().empty() ? first_rank.finished_step() : steps;
}

}  // namespace trainyard
