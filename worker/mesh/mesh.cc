#include "worker/mesh/mesh.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

// In the order of the enum: the slowest axis first.
constexpr std::array<const char*, kNumAxes> kAxisNames = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};

}  // namespace

const char* AxisName(Axis axis) { return kAxisNames[static_cast<int>(axis)]; }

absl::StatusOr<Mesh> Mesh::Create(const MeshShape& shape, int world_size) {
  std::array<int, kNumAxes> sizes = {shape.pp, shape.dp_replicate, shape.dp_shard, shape.cp, shape.tp};
  int64_t product = 1;
  std::vector<std::string> factors;
  for (int i = 0; i < kNumAxes; ++i) {
    if (sizes[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh axis ", kAxisNames[i], " is ", sizes[i], "; it must be 1 or more"));
    }
    product *= sizes[i];
    if (product > world_size) product = int64_t{world_size} + 1;  // too large; avoids overflow of the next product
    factors.push_back(absl::StrCat(kAxisNames[i], " ", sizes[i]));
  }
  if (product != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the mesh ", absl::StrJoin(factors, " x "), " does not hold ",
                                                   world_size,
                                                   " ranks; the product of its sides must be the number of ranks"));
  }
  return Mesh(sizes, world_size);
}

int Mesh::Stride(Axis axis) const {
  int stride = 1;
  for (int i = kNumAxes - 1; i > static_cast<int>(axis); --i) stride *= sizes_[i];
  return stride;
}

int Mesh::Coordinate(int rank, Axis axis) const { return rank / Stride(axis) % Size(axis); }

std::vector<int> Mesh::Peers(int rank, Axis axis) const {
  int stride = Stride(axis);
  int first = rank - Coordinate(rank, axis) * stride;
  std::vector<int> peers;
  for (int i = 0; i < Size(axis); ++i) peers.push_back(first + i * stride);
  return peers;
}

int Mesh::DataRank(int rank) const {
  return Coordinate(rank, Axis::kReplicate) * Size(Axis::kShard) + Coordinate(rank, Axis::kShard);
}

std::vector<int> Mesh::DataPeers(int rank) const {
  std::vector<int> peers;
  for (int replica : Peers(rank, Axis::kReplicate)) {
    for (int peer : Peers(replica, Axis::kShard)) peers.push_back(peer);
  }
  return peers;
}

std::string Mesh::ToString() const {
  std::vector<std::string> sides;
  for (int i = 0; i < kNumAxes; ++i) {
    if (sizes_[i] > 1) sides.push_back(absl::StrCat(kAxisNames[i], " ", sizes_[i]));
  }
  return sides.empty() ? "world of 1" : absl::StrJoin(sides, " x ");
}

}  // namespace trainyard
