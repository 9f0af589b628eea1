// Attention of single queries over keys and values in memory: each query names its own keys and their number. The heads
// of queries that share a head of keys are computed together, so that keys and values are read once and never copied. A
// result depends on its own query and keys alone, not on other queries or the number of threads.
//
// fp32 and bf16 on a CPU, with scores and sums in fp32. Thread-safe.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace trainyard {

struct CachedQuery {
  // The heads follow one another. `keys` and `values` begin at the first token that the query sees.
  const void *q = nullptr, *keys = nullptr, *values = nullptr;
  void* out = nullptr;
  int64_t num_keys = 0;
};

struct CachedAttention {
  at::ScalarType type = at::kFloat;
  int64_t heads = 0, kv_heads = 0;
  int64_t depth = 0;  // width of one head
  std::vector<CachedQuery> queries;
};

// The rows of keys and values follow one another without gaps. REQUIRES: kv_heads divides heads; num_keys >= 1.
void RunCachedAttention(const CachedAttention& attention);

}  // namespace trainyard
