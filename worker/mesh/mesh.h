// The mesh gives each rank its coordinates in the layout of a job: ranks 0 to world_size - 1 are the points of a box
// with one side for each kind of parallelism. `axis` always means a side of this box, never a dimension of a tensor.
//
//   pp            pipeline stages; the slowest axis
//   dp_replicate  copies of the model that each train on their own samples
//   dp_shard      ranks that divide one copy of the model among them and also train on their own samples
//   cp            ranks that divide a sequence among them
//   tp            ranks that divide a layer among them; the fastest axis, so that they are neighbours on a host
//
// The ranks of dp_replicate x dp_shard are the data ranks: micro-batches are dealt to them.
// Pure; a Mesh is a value and can be read from any thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard {

enum class Axis { kPipeline, kReplicate, kShard, kContext, kTensor };
inline constexpr int kNumAxes = 5;
const char* AxisName(Axis axis);

struct MeshShape {
  int pp = 1;
  int dp_replicate = 1;
  int dp_shard = 1;
  int cp = 1;
  int tp = 1;
};

class Mesh {
 public:
  // Fails with InvalidArgument if a side is not positive or the product of the sides is not `world_size`; the message
  // shows the sides.
  static absl::StatusOr<Mesh> Create(const MeshShape& shape, int world_size);

  int world_size() const { return world_size_; }
  int Size(Axis axis) const { return sizes_[static_cast<int>(axis)]; }

  // The coordinate of `rank` along `axis`. REQUIRES: 0 <= rank < world_size().
  int Coordinate(int rank, Axis axis) const;

  // `rank` and the ranks whose coordinates differ from its own along `axis` only, in order of their coordinate.
  std::vector<int> Peers(int rank, Axis axis) const;

  // The number of data ranks, and the data rank of `rank`.
  int num_data_ranks() const { return Size(Axis::kReplicate) * Size(Axis::kShard); }
  int DataRank(int rank) const;

  // `rank` and the ranks whose coordinates differ from its own along dp_replicate and dp_shard only, in order of their
  // data rank.
  std::vector<int> DataPeers(int rank) const;

  // "dp_replicate 4", or "world of 1".
  std::string ToString() const;

 private:
  Mesh(std::array<int, kNumAxes> sizes, int world_size) : sizes_(sizes), world_size_(world_size) {}
  int Stride(Axis axis) const;

  std::array<int, kNumAxes> sizes_;
  int world_size_;
};

}  // namespace trainyard
