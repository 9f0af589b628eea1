// Where the parameters of a group are in its flat buffer, and which part of that buffer each rank holds. Pure: the
// result follows from the sizes and is the same on every rank.
//
//   |  rank 0: shard elements   |  rank 1                   |  rank 2                   |
//   | a a a a a a . | b b b b b b b b b b b b b . | c c c c c c c c . . . . . . . . . . |
//     16-aligned     ^gap, 0                                         ^gap, 0
//
// Parameters are stored row-major, one after another, each at a multiple of kAlignment elements; the whole is padded to
// a multiple of num_shards x kAlignment. So a rank holds one element range of each parameter, possibly an empty one,
// and the vector code of the optimizer has no tail in any layout.
#pragma once

#include <cstdint>
#include <vector>

namespace trainyard {

inline constexpr int64_t kAlignment = 16;  // elements

struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

// The part of one parameter that a rank holds.
struct ShardPiece {
  int parameter = 0;   // index into `sizes`
  ElementRange range;  // of the parameter
  int64_t offset = 0;  // in the rank's shard
  bool operator==(const ShardPiece&) const = default;
};

struct ShardLayout {
  int num_shards = 1;
  int64_t total = 0;  // elements of the flat buffer; num_shards x shard
  int64_t shard = 0;
  int64_t used = 0;              // up to the aligned end of the last parameter; independent of num_shards
  std::vector<int64_t> sizes;    // of each parameter
  std::vector<int64_t> offsets;  // of each parameter in the flat buffer
  std::vector<int> order;        // of the parameters in the flat buffer

  // Padding between and after parameters in the flat buffer, in ascending order; it must hold zeros.
  std::vector<ElementRange> Gaps() const;
  // The pieces that `rank` holds, in the order of the flat buffer.
  std::vector<ShardPiece> PiecesOf(int rank) const;
};

// How the ranks that hold a flat buffer divide it: into shards, and each shard into shares of at most `share` elements.
struct ShardCut {
  int num_shards = 1;
  int64_t shard = 0;
  int64_t share = 0;
};
// The bounds of shares within a parameter of `size` elements that begins at `offset` of the buffer, in ascending order.
std::vector<int64_t> BoundsWithin(const ShardCut& cut, int64_t offset, int64_t size);

// `order` contains every parameter once. REQUIRES: num_shards >= 1; sizes >= 0.
ShardLayout MakeShardLayout(const std::vector<int64_t>& sizes, const std::vector<int>& order, int num_shards);

}  // namespace trainyard
