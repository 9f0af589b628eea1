// Buckets: the gradients of several parameters side by side in one flat stretch of memory, so that they travel
// together. See [Note: bucket order] in data_parallel.h. Pure: shapes in, places out.
//
// Within a bucket the parameters with weight decay come first, then those without, so that the optimizer meets two long
// ranges a bucket instead of one short one a parameter:
//
//   | bucket 0                 | bucket 1                 | ...
//   | decayed ... | others ... | decayed ... | others ... |
#pragma once

#include <cstdint>
#include <vector>

namespace trainyard {

struct BucketPlan {
  struct Bucket {
    int64_t start = 0;  // in elements of the whole flat buffer
    int64_t num_decayed = 0;
    int64_t num_elements = 0;
    std::vector<int> parameters;  // in the order they lie
  };
  std::vector<Bucket> buckets;   // in launch order
  std::vector<int64_t> offsets;  // of each parameter in the flat buffer
  std::vector<int> bucket_of;    // of each parameter
  int64_t num_elements = 0;
};

// Takes the parameters from the last to the first and closes a bucket once it holds `bucket_elements` or more.
// `sizes[i]` is the number of elements of parameter i, `decays[i]` whether weight decay applies to it.
BucketPlan PlanBuckets(const std::vector<int64_t>& sizes, const std::vector<bool>& decays, int64_t bucket_elements);

}  // namespace trainyard
