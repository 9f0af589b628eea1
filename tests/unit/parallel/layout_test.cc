// The pure functions that decide what is stored where: sharding, meshes, layouts, buckets, deals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "worker/data/sampler.h"
#include "worker/parallel/buckets.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/shard_layout.h"
#include "worker/parallel/sharding.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const char* TableName(Sharding sharding) { return sharding == Sharding::kSharded ? "sharded" : "replicated"; }

TEST(Sharding, MatchesTheTableOfStrategies) {
  std::string table;
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"}) {
    const Strategy strategy = *StrategyOf(name);
    EXPECT_STREQ(StrategyName(strategy), name);
    const StateSharding sharding = ShardingOf(strategy);
    absl::StrAppend(&table, name, ": parameters ", TableName(sharding.parameters), ", gradients ",
                    TableName(sharding.gradients), ", optimizer state ", TableName(sharding.optimizer_state), "\n");
  }
  EXPECT_EQ(*ReadFile("tests/golden/sharding/strategies.txt"), table);
  EXPECT_THAT(StrategyOf("zero4").status().message(),
              HasSubstr("'zero4' is not a data-parallel strategy; known: ddp, zero1"));
}

TEST(DataMesh, DividesTheRanksOverBothAxes) {
  auto axes = [](Strategy strategy, int world, int shard, int replicate) {
    absl::StatusOr<MeshShape> shape = DataMesh(strategy, world, shard, replicate);
    return shape.ok() ? std::vector<int>{shape->dp_replicate, shape->dp_shard} : std::vector<int>{};
  };
  EXPECT_THAT(axes(Strategy::kDdp, 4, 0, 0), ElementsAre(4, 1));
  EXPECT_THAT(axes(Strategy::kZero1, 4, 0, 0), ElementsAre(1, 4));
  EXPECT_THAT(axes(Strategy::kFsdp, 1, 0, 0), ElementsAre(1, 1));
  EXPECT_THAT(axes(Strategy::kHsdp, 6, 2, 0), ElementsAre(3, 2));
  EXPECT_THAT(axes(Strategy::kHsdp, 6, 0, 2), ElementsAre(2, 3));
  EXPECT_THAT(axes(Strategy::kHsdp, 6, 3, 2), ElementsAre(2, 3));
  EXPECT_THAT(axes(Strategy::kHsdp, 6, 4, 0), IsEmpty());
  EXPECT_THAT(DataMesh(Strategy::kHsdp, 6, 2, 2).status().message(), HasSubstr("shard 2 x replicate 2 is 4"));
  EXPECT_THAT(DataMesh(Strategy::kHsdp, 4).status().message(), HasSubstr("needs a size"));
}

TEST(MakeShardLayout, AlignsEveryParameter_AndPadsForTheShards) {
  ShardLayout layout = MakeShardLayout({10, 32, 5}, {1, 0, 2}, /*num_shards=*/3);

  EXPECT_THAT(layout.offsets, ElementsAre(32, 0, 48));
  EXPECT_EQ(layout.used, 64);
  EXPECT_EQ(layout.total, 96);
  EXPECT_EQ(layout.shard, 32);
  EXPECT_THAT(layout.Gaps(), ElementsAre(ElementRange{42, 6}, ElementRange{53, 43}));
  EXPECT_THAT(layout.PiecesOf(0), ElementsAre(ShardPiece{1, {0, 32}, 0}));
  EXPECT_THAT(layout.PiecesOf(1), ElementsAre(ShardPiece{0, {0, 10}, 0}, ShardPiece{2, {0, 5}, 16}));
  EXPECT_THAT(layout.PiecesOf(2), IsEmpty()) << "this rank must hold only padding";
}

// The example of events_test.cc: three layers of three parameters on three ranks. Each layer is a group.
TEST(MakeShardLayout, ThreeLayersOfThreeOverThreeRanks_GiveEachRankOneParameterOfEachLayer) {
  std::vector<std::string> held(3);
  for (const std::string layer : {"a", "b", "c"}) {
    ShardLayout layout = MakeShardLayout({48, 48, 48}, {0, 1, 2}, /*num_shards=*/3);
    for (int rank = 0; rank < 3; ++rank) {
      for (const ShardPiece& piece : layout.PiecesOf(rank)) {
        EXPECT_EQ(piece.range, (ElementRange{0, 48})) << "each parameter must be whole on one rank";
        absl::StrAppend(&held[rank], held[rank].empty() ? "" : " ", layer, piece.parameter);
      }
    }
  }
  EXPECT_THAT(held, ElementsAre("a0 b0 c0", "a1 b1 c1", "a2 b2 c2"));
}

TEST(MakeShardLayout, DividesAParameterAtTheEndOfAShard) {
  ShardLayout layout = MakeShardLayout({100}, {0}, 2);
  EXPECT_EQ(layout.shard, 64);
  EXPECT_THAT(layout.PiecesOf(0), ElementsAre(ShardPiece{0, {0, 64}, 0}));
  EXPECT_THAT(layout.PiecesOf(1), ElementsAre(ShardPiece{0, {64, 36}, 0}));
}

// Every element is in exactly one piece or gap. A failure prints the seed that reproduces it.
TEST(MakeShardLayout, RandomShapes_AreCoveredOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> sizes(1 + random() % 12);
    std::vector<int> order(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = random() % 60;
      order[i] = static_cast<int>(i);
    }
    std::shuffle(order.begin(), order.end(), random);
    ShardLayout layout = MakeShardLayout(sizes, order, 1 + static_cast<int>(random() % 5));

    std::vector<int> covered(layout.total);
    for (const ElementRange& gap : layout.Gaps()) {
      for (int64_t i = 0; i < gap.count; ++i) ++covered[gap.first + i];
    }
    std::vector<int64_t> held(sizes.size());
    for (int rank = 0; rank < layout.num_shards; ++rank) {
      for (const ShardPiece& piece : layout.PiecesOf(rank)) {
        ASSERT_EQ(piece.range.first, held[piece.parameter]) << "seed " << seed;
        held[piece.parameter] += piece.range.count;
        for (int64_t i = 0; i < piece.range.count; ++i) ++covered[rank * layout.shard + piece.offset + i];
      }
    }
    ASSERT_EQ(held, sizes) << "seed " << seed;
    ASSERT_THAT(covered, testing::Each(1)) << "seed " << seed;
  }
}

TEST(CutBuckets, TakesParametersInOrderAndClosesABucketOnceItIsFull) {
  EXPECT_THAT(CutBuckets({10, 5, 20, 5}, {3, 2, 1, 0}, 25), ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
  EXPECT_THAT(CutBuckets({1, 2, 3}, {2, 1, 0}, 1000), ElementsAre(ElementsAre(2, 1, 0)));
  EXPECT_THAT(CutBuckets({100, 100, 7}, {0, 1}, 10), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

// Reads an epoch whose end is within a step, as Trainer::Compute does.
TEST(DealStep, RanksReadDisjointSamplesThatCoverTheData) {
  constexpr uint64_t kSamples = 101;
  constexpr int64_t kGlobal = 12, kMicro = 3;
  const Sampler sampler(kSamples, 7);
  for (int world : {1, 2, 3, 4, 8}) {
    std::vector<int> seen(kSamples);
    for (uint64_t position = 0; position < kSamples; position += kGlobal) {
      for (int rank = 0; rank < world; ++rank) {
        for (int64_t index : DealStep(kGlobal, kMicro, rank, world).micro_batches) {
          const uint64_t first = position + static_cast<uint64_t>(index * kMicro);
          for (uint64_t i = first; i < std::min(first + kMicro, kSamples); ++i) seen[sampler.At(i)]++;
        }
      }
    }
    EXPECT_THAT(seen, testing::Each(1)) << world << " ranks";
  }
}

TEST(DealStep, GivesMicroBatchesToTheRanksInTurn) {
  EXPECT_EQ(DealStep(12, 2, 0, 4).num_micro_batches, 6);
  EXPECT_THAT(DealStep(12, 2, 0, 4).micro_batches, ElementsAre(0, 4));
  EXPECT_THAT(DealStep(12, 2, 1, 4).micro_batches, ElementsAre(1, 5));
  EXPECT_THAT(DealStep(12, 2, 3, 4).micro_batches, ElementsAre(3));
  EXPECT_THAT(DealStep(4, 2, 3, 4).micro_batches, IsEmpty());
}

// Batches of an evaluation: round r of data rank d is batch r x ranks + d.
TEST(DealStep, OfSingleSamples_DealsTheBatchesOfAnEvaluation) {
  EXPECT_THAT(DealStep(8, 1, 1, 3).micro_batches, ElementsAre(1, 4, 7));
  EXPECT_THAT(DealStep(8, 1, 2, 3).micro_batches, ElementsAre(2, 5));
  EXPECT_EQ(DealStep(8, 1, 2, 3).num_rounds, 3);
}

TEST(DealStep, EveryMicroBatchGoesToOneRank) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    std::vector<int> dealt(20);
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t i : DealStep(60, 3, rank, ranks).micro_batches) dealt[i]++;
    }
    EXPECT_THAT(dealt, testing::Each(1)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace trainyard
