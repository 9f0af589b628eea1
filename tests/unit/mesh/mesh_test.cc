#include "worker/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Axis kAxes[] = {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor};

TEST(Mesh, WithOnlyDataAxes_EveryRankIsADataRank) {
  Mesh mesh = *Mesh::Create({.dp_replicate = 4}, 4);

  EXPECT_EQ(mesh.num_data_ranks(), 4);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(mesh.DataRank(rank), rank);
  EXPECT_THAT(mesh.Peers(2, Axis::kReplicate), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(mesh.Peers(2, Axis::kTensor), ElementsAre(2));
  EXPECT_EQ(mesh.ToString(), "dp_replicate 4");
}

TEST(Mesh, TensorIsTheFastestAxisAndPipelineTheSlowest) {
  Mesh mesh = *Mesh::Create({.pp = 2, .dp_replicate = 3, .tp = 2}, 12);

  EXPECT_THAT(mesh.Peers(7, Axis::kTensor), ElementsAre(6, 7));
  EXPECT_THAT(mesh.Peers(7, Axis::kReplicate), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.Peers(7, Axis::kPipeline), ElementsAre(1, 7));
  EXPECT_EQ(mesh.ToString(), "pp 2 x dp_replicate 3 x tp 2");
}

TEST(Mesh, DataPeersAreTheDataRanksOfTheSamePart) {
  EXPECT_THAT(Mesh::Create({.dp_replicate = 2, .dp_shard = 2}, 4)->DataPeers(3), ElementsAre(0, 1, 2, 3));

  Mesh mesh = *Mesh::Create({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 2}, 16);
  EXPECT_THAT(mesh.DataPeers(13), ElementsAre(9, 11, 13, 15));
  for (int peer : mesh.DataPeers(13)) EXPECT_EQ(mesh.DataPeers(13)[mesh.DataRank(peer)], peer);
}

TEST(Mesh, CoordinatesAndPeersAgreeForEveryRank) {
  Mesh mesh = *Mesh::Create({.pp = 2, .dp_replicate = 2, .dp_shard = 3, .cp = 2, .tp = 2}, 48);

  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    for (Axis axis : kAxes) {
      std::vector<int> peers = mesh.Peers(rank, axis);
      ASSERT_EQ(static_cast<int>(peers.size()), mesh.Size(axis));
      EXPECT_EQ(peers[mesh.Coordinate(rank, axis)], rank);
      for (int peer : peers) {
        for (Axis other : kAxes) {
          if (other == axis) continue;
          EXPECT_EQ(mesh.Coordinate(peer, other), mesh.Coordinate(rank, other));
        }
      }
    }
  }
}

TEST(Mesh, WithAWrongProduct_IsRefusedWithTheProduct) {
  auto mesh = Mesh::Create({.dp_replicate = 3}, 4);

  ASSERT_TRUE(absl::IsInvalidArgument(mesh.status()));
  EXPECT_THAT(mesh.status().message(), HasSubstr("dp_replicate 3"));
  EXPECT_THAT(mesh.status().message(), HasSubstr("does not hold 4 ranks"));
}

TEST(Mesh, WithAnAxisBelowOne_IsRefusedWithItsName) {
  auto mesh = Mesh::Create({.tp = 0}, 1);

  ASSERT_TRUE(absl::IsInvalidArgument(mesh.status()));
  EXPECT_THAT(mesh.status().message(), HasSubstr("tp is 0"));
}

TEST(Mesh, WithAHugeProduct_IsRefusedWithoutOverflow) {
  EXPECT_FALSE(Mesh::Create({.pp = 1 << 30, .dp_replicate = 1 << 30, .dp_shard = 1 << 30}, 4).ok());
}

}  // namespace
}  // namespace trainyard
