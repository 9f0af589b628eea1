#include "worker/model/ops/cached_attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "worker/model/ops/row_lanes.h"

namespace trainyard {
namespace {

constexpr float kMinScore = -87.0f;                 // relative to the highest; exponentials of lower ones count as 0
constexpr int64_t kCachedGrain = int64_t{1} << 15;  // fewer multiplications are not worth another thread

// One head of keys and the heads of queries that use it.
struct CachedGroup {
  const CachedAttention* attention;
  const CachedQuery* query;
  int64_t kv_head;
  float* scores;  // working memory: num_keys of each head of the group, rounded up to full vectors
};

TRAINYARD_INLINE int64_t FullLanes(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Replaces scores by probabilities. The elements from `size` to FullLanes(size) become 0.
TRAINYARD_INLINE void CachedSoftmax(float* scores, int64_t size) {
  const int64_t end = FullLanes(size);
  float highest = scores[0];
  for (int64_t i = 1; i < size; ++i) highest = std::max(highest, scores[i]);
  for (int64_t i = size; i < end; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  const Floats lowest = AllLanes(kMinScore);
  Floats sum{};
  for (int64_t i = 0; i < end; i += kLanes) {
    const Floats exponent = LoadLanes(scores + i) - highest;
    const Floats kept = exponent < lowest ? Floats{} : ExpLanes(exponent < lowest ? lowest : exponent);
    StoreLanes(kept, scores + i);
    sum += kept;
  }
  const float inverse = 1.0f / SumAcrossLanes(sum);
  for (int64_t i = 0; i < end; i += kLanes) StoreLanes(LoadLanes(scores + i) * inverse, scores + i);
}

template <typename T>
TRAINYARD_INLINE void AttendGroup(const CachedGroup& group) {
  const CachedAttention& shape = *group.attention;
  const CachedQuery& query = *group.query;
  const int64_t depth = shape.depth, row = shape.kv_heads * depth, heads = shape.heads / shape.kv_heads;
  const int64_t stride = FullLanes(query.num_keys);
  const T* q = static_cast<const T*>(query.q) + group.kv_head * heads * depth;
  const T* keys = static_cast<const T*>(query.keys) + group.kv_head * depth;
  const T* values = static_cast<const T*>(query.values) + group.kv_head * depth;
  T* out = static_cast<T*>(query.out) + group.kv_head * heads * depth;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(depth)));
  for (int64_t key = 0; key < query.num_keys; ++key) {
    for (int64_t head = 0; head < heads; ++head) {
      Floats sum{};
      for (int64_t i = 0; i < depth; i += kLanes) {
        const int64_t size = LanesAt(i, depth);
        sum += LoadUpTo(q + head * depth + i, size) * LoadUpTo(keys + key * row + i, size);
      }
      group.scores[head * stride + key] = SumLanesByHalves(sum) * scale;
    }
  }
  for (int64_t head = 0; head < heads; ++head) CachedSoftmax(group.scores + head * stride, query.num_keys);
  for (int64_t head = 0; head < heads; ++head) {
    const float* probabilities = group.scores + head * stride;
    for (int64_t i = 0; i < depth; i += kLanes) {
      const int64_t size = LanesAt(i, depth);
      Floats sum{};
      for (int64_t key = 0; key < query.num_keys; ++key) {
        sum += LoadUpTo(values + key * row + i, size) * probabilities[key];
      }
      StoreUpTo(sum, out + head * depth + i, size);
    }
  }
}

TRAINYARD_INLINE void AttendEither(const CachedGroup& group) {
  group.attention->type == at::kFloat ? AttendGroup<float>(group) : AttendGroup<uint16_t>(group);
}

// The same loop, compiled for three kinds of CPU.
TRAINYARD_AVX512 void AttendAvx512(const CachedGroup& group) { AttendEither(group); }
TRAINYARD_AVX2 void AttendAvx2(const CachedGroup& group) { AttendEither(group); }
void AttendAny(const CachedGroup& group) { AttendEither(group); }

}  // namespace

void RunCachedAttention(const CachedAttention& attention) {
  static const auto run = ForCpu(AttendAvx512, AttendAvx2, AttendAny);
  int64_t most_keys = 1;
  for (const CachedQuery& query : attention.queries) most_keys = std::max(most_keys, query.num_keys);
  const int64_t groups = attention.kv_heads, heads = attention.heads / attention.kv_heads;
  const int64_t grain = std::max<int64_t>(1, kCachedGrain / (most_keys * attention.depth * heads));
  at::parallel_for(0, static_cast<int64_t>(attention.queries.size()) * groups, grain, [&](int64_t first, int64_t last) {
    std::vector<float> scores(static_cast<size_t>(heads * FullLanes(most_keys)));
    for (int64_t i = first; i < last; ++i) {
      run({.attention = &attention,
           .query = &attention.queries[static_cast<size_t>(i / groups)],
           .kv_head = i % groups,
           .scores = scores.data()});
    }
  });
}

}  // namespace trainyard
