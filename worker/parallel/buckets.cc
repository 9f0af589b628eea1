#include "worker/parallel/buckets.h"

#include <algorithm>

namespace trainyard {

BucketPlan PlanBuckets(const std::vector<int64_t>& sizes, const std::vector<bool>& decays, int64_t bucket_elements) {
  BucketPlan plan;
  plan.offsets.resize(sizes.size());
  plan.bucket_of.resize(sizes.size());
  for (int i = static_cast<int>(sizes.size()) - 1; i >= 0; --i) {
    if (plan.buckets.empty() || plan.buckets.back().num_elements >= bucket_elements) plan.buckets.emplace_back();
    BucketPlan::Bucket& bucket = plan.buckets.back();
    bucket.parameters.push_back(i);
    bucket.num_elements += sizes[i];
    if (decays[i]) bucket.num_decayed += sizes[i];
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    BucketPlan::Bucket& bucket = plan.buckets[b];
    std::stable_partition(bucket.parameters.begin(), bucket.parameters.end(), [&](int i) { return decays[i]; });
    bucket.start = plan.num_elements;
    for (int i : bucket.parameters) {
      plan.offsets[i] = plan.num_elements;
      plan.bucket_of[i] = static_cast<int>(b);
      plan.num_elements += sizes[i];
    }
  }
  return plan;
}

}  // namespace trainyard
