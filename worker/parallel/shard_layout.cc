#include "worker/parallel/shard_layout.h"

#include <algorithm>

namespace trainyard {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

ShardLayout MakeShardLayout(const std::vector<int64_t>& sizes, const std::vector<int>& order, int num_shards) {
  ShardLayout layout{
      .num_shards = num_shards, .sizes = sizes, .offsets = std::vector<int64_t>(sizes.size()), .order = order};
  for (int parameter : order) {
    layout.offsets[parameter] = layout.used;
    layout.used = RoundUp(layout.used + sizes[parameter], kAlignment);
  }
  layout.total = RoundUp(layout.used, num_shards * kAlignment);
  layout.shard = layout.total / num_shards;
  return layout;
}

std::vector<int64_t> BoundsWithin(const ShardCut& cut, int64_t offset, int64_t size) {
  std::vector<int64_t> bounds;
  for (int64_t shard = 0; shard < cut.num_shards; ++shard) {
    for (int64_t at = 0; at < cut.shard; at += cut.share) {
      const int64_t bound = shard * cut.shard + at - offset;
      if (bound > 0 && bound < size) bounds.push_back(bound);
    }
  }
  return bounds;
}

std::vector<ElementRange> ShardLayout::Gaps() const {
  std::vector<ElementRange> gaps;
  int64_t end = 0;
  auto close = [&](int64_t next) {
    if (next > end) gaps.push_back({end, next - end});
  };
  for (int parameter : order) {
    close(offsets[parameter]);
    end = offsets[parameter] + sizes[parameter];
  }
  close(total);
  return gaps;
}

std::vector<ShardPiece> ShardLayout::PiecesOf(int rank) const {
  const int64_t first = rank * shard, last = first + shard;
  std::vector<ShardPiece> pieces;
  for (int parameter : order) {
    const int64_t begin = std::max(first, offsets[parameter]);
    const int64_t end = std::min(last, offsets[parameter] + sizes[parameter]);
    if (begin >= end) continue;
    pieces.push_back(
        {.parameter = parameter, .range = {begin - offsets[parameter], end - begin}, .offset = begin - first});
  }
  return pieces;
}

}  // namespace trainyard
