// Defaults of job keys that code also needs without a job file. proto/trainyard/v1/job.proto holds the same values; a
// test compares the two.
#pragma once

#include <cstdint>

namespace trainyard::defaults {

inline constexpr int64_t kBucketElements = 6'553'600;       // 25 MiB of fp32
inline constexpr int64_t kMaxLiveElements = 1'000'000'000;  // of gathered parameters
inline constexpr int64_t kOptimizerTileElements = 1'000'000'000;

}  // namespace trainyard::defaults
