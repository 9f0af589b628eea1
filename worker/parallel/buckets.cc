#include "worker/parallel/buckets.h"

namespace trainyard {

std::vector<std::vector<int>> CutBuckets(const std::vector<int64_t>& sizes, const std::vector<int>& order,
                                         int64_t bucket_elements) {
  std::vector<std::vector<int>> buckets;
  int64_t held = bucket_elements;
  for (int i : order) {
    if (held >= bucket_elements) {
      buckets.emplace_back();
      held = 0;
    }
    buckets.back().push_back(i);
    held += sizes[i];
  }
  return buckets;
}

}  // namespace trainyard
