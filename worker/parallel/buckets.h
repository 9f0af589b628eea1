// Divides replicated parameters into buckets: groups that are reduced together. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace trainyard {

// Takes the parameters in `order` and closes a bucket once it holds `bucket_elements` or more. `sizes[i]` is the number
// of elements of parameter i. The result contains every parameter of `order` once, in the order of the reductions.
std::vector<std::vector<int>> CutBuckets(const std::vector<int64_t>& sizes, const std::vector<int>& order,
                                         int64_t bucket_elements);

}  // namespace trainyard
