// Runs DDP on 1, 2, 3 and 4 ranks and compares the results with the oracle (TrainReference) and with each other.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/parity/cells.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"

namespace trainyard {
namespace {

RankPool& Pool() {
  static RankPool pool(4);
  return pool;
}

std::vector<TrainingOutcome> TrainWorld(int size, const TrainingCase& training,
                                        PoolTransport transport = PoolTransport::kGloo) {
  absl::StatusOr<std::vector<std::string>> results = Pool().Run(
      {.mesh = {.dp_replicate = size}, .transport = transport, .main = "train", .arguments = training.ToString()});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<TrainingOutcome> outcomes;
  if (results.ok()) {
    for (const std::string& result : *results) outcomes.push_back(TrainingOutcome::Parse(result));
  }
  return outcomes;
}

void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], relative * std::abs(expected[i])) << "at step " << i + 1;
  }
}

// The oracle's result for a case, computed once for all world sizes.
const TrainingOutcome& Oracle(const TrainingCase& training) {
  static std::map<std::string, TrainingOutcome> outcomes;
  auto [it, is_new] = outcomes.try_emplace(training.ToString());
  if (is_new) it->second = TrainReference(training);
  return it->second;
}

class DdpByWorldSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpByWorldSize, testing::Values(1, 2, 3, 4));

TEST_P(DdpByWorldSize, MatchesTheOracleInFp64) {
  TrainingCase training{
      .type = at::kDouble, .steps = RunsAllCells() ? 100 : 40, .global = 12, .micro = 1, .clip_norm = 0.5};

  std::vector<TrainingOutcome> ranks = TrainWorld(GetParam(), training);
  const TrainingOutcome& oracle = Oracle(training);

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  ExpectNear(ranks[0].losses, oracle.losses, 1e-10);
  EXPECT_NEAR(ranks[0].sum_of_parameters, oracle.sum_of_parameters, 1e-10 * oracle.sum_of_parameters);
  EXPECT_LT(oracle.losses.back(), 0.8 * oracle.losses.front())
      << "the loss did not fall, so the comparison proves nothing";
}

TEST_P(DdpByWorldSize, MatchesTheOracleInFp32) {
  TrainingCase training{.type = at::kFloat, .steps = 20, .global = 12, .micro = 3, .clip_norm = 0.5};

  std::vector<TrainingOutcome> ranks = TrainWorld(GetParam(), training);

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  ExpectNear(ranks[0].losses, Oracle(training).losses, 1e-6);
}

TEST_P(DdpByWorldSize, HasTheSameBitsOnEveryTransport) {
  const TrainingCase training{.type = at::kFloat, .steps = 10, .global = 12, .clip_norm = 0.5};

  std::vector<TrainingOutcome> in_memory = TrainWorld(GetParam(), training, PoolTransport::kSharedMemory);
  std::vector<TrainingOutcome> over_gloo = TrainWorld(GetParam(), training, PoolTransport::kGloo);

  ASSERT_EQ(over_gloo.size(), in_memory.size());
  EXPECT_EQ(over_gloo[0].losses, in_memory[0].losses);
  EXPECT_EQ(over_gloo[0].norms, in_memory[0].norms);
  EXPECT_EQ(over_gloo[0].parameters_hash, in_memory[0].parameters_hash);
}

TEST_P(DdpByWorldSize, HasTheSameParametersOnEveryRank) {
  std::vector<TrainingOutcome> ranks = TrainWorld(GetParam(), {.type = at::kFloat, .steps = 5, .clip_norm = 0.5});

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_EQ(rank.parameters_hash, ranks[0].parameters_hash);
    EXPECT_EQ(rank.losses, ranks[0].losses);
    EXPECT_EQ(rank.norms, ranks[0].norms);
  }
}

TEST_P(DdpByWorldSize, Overlap_ChangesNoBit) {
  TrainingCase training{.type = at::kFloat, .steps = 8, .clip_norm = 0.5};
  TrainingCase without_overlap = training;
  without_overlap.overlap = false;

  std::vector<TrainingOutcome> overlapped = TrainWorld(GetParam(), training);
  std::vector<TrainingOutcome> sequential = TrainWorld(GetParam(), without_overlap);

  ASSERT_FALSE(overlapped.empty());
  ASSERT_FALSE(sequential.empty());
  EXPECT_EQ(overlapped[0].losses, sequential[0].losses);
  EXPECT_EQ(overlapped[0].parameters_hash, sequential[0].parameters_hash);
}

// 2, 3 or 4 ranks cannot share 5 micro-batches equally: some ranks have one fewer than others.
TEST_P(DdpByWorldSize, UnevenDeal_MatchesTheOracle) {
  TrainingCase training{.type = at::kDouble, .steps = 10, .global = 10, .micro = 2};

  std::vector<TrainingOutcome> ranks = TrainWorld(GetParam(), training);

  ASSERT_FALSE(ranks.empty());
  ExpectNear(ranks[0].losses, Oracle(training).losses, 1e-10);
}

TEST_P(DdpByWorldSize, SharedMemory_MatchesTheOracleAndGloo) {
  TrainingCase training{.type = at::kDouble, .steps = 20, .global = 12, .micro = 1, .clip_norm = 0.5};

  std::vector<TrainingOutcome> shared = TrainWorld(GetParam(), training, PoolTransport::kSharedMemory);

  ASSERT_EQ(shared.size(), static_cast<size_t>(GetParam()));
  ExpectNear(shared[0].losses, Oracle(training).losses, 1e-10);
  for (const TrainingOutcome& rank : shared) EXPECT_EQ(rank.parameters_hash, shared[0].parameters_hash);
  std::vector<TrainingOutcome> gloo = TrainWorld(GetParam(), training);
  ASSERT_FALSE(gloo.empty());
  EXPECT_EQ(shared[0].losses, gloo[0].losses);
  EXPECT_EQ(shared[0].parameters_hash, gloo[0].parameters_hash);
}

TEST_P(DdpByWorldSize, StepRejectedByOneRank_UpdatesNothingOnAnyRank) {
  TrainingCase training{.type = at::kDouble, .steps = 8, .global = 12, .micro = 1, .clip_norm = 0.5};
  TrainingCase rejected = training;
  rejected.rejected_step = 5;

  std::vector<TrainingOutcome> ranks = TrainWorld(GetParam(), rejected);
  std::vector<TrainingOutcome> unrejected = TrainWorld(GetParam(), training);

  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  ASSERT_FALSE(unrejected.empty());
  for (const TrainingOutcome& rank : ranks) {
    EXPECT_EQ(rank.parameters_hash, ranks[0].parameters_hash);
    EXPECT_TRUE(std::isnan(rank.norms[4]));
    EXPECT_TRUE(std::isfinite(rank.norms[5]));
  }
  // Steps up to the rejected one equal those of a run without rejection; later steps differ.
  EXPECT_TRUE(std::equal(ranks[0].losses.begin(), ranks[0].losses.begin() + 5, unrejected[0].losses.begin()));
  EXPECT_NE(ranks[0].losses[5], unrejected[0].losses[5]);
  // The state after a skipped update does not depend on the world size.
  static const TrainingOutcome alone = TrainWorld(1, rejected).at(0);
  ExpectNear(ranks[0].losses, alone.losses, 1e-10);
}

TEST(Accumulation, OfManyMicroBatches_EqualsOneLargeBatch) {
  TrainingCase large{.type = at::kDouble, .steps = 20, .global = 12, .micro = 12, .clip_norm = 0.5};
  TrainingCase accumulated = large;
  accumulated.micro = 2;

  std::vector<TrainingOutcome> one = TrainWorld(1, large);
  std::vector<TrainingOutcome> many = TrainWorld(1, accumulated);

  ASSERT_FALSE(one.empty());
  ASSERT_FALSE(many.empty());
  ExpectNear(many[0].losses, one[0].losses, 1e-12);
  ExpectNear(many[0].norms, one[0].norms, 1e-10);
}

TEST(Dropout, DoesNotDependOnTheWorldSize) {
  TrainingCase training{.type = at::kDouble, .steps = 10, .global = 12, .micro = 2, .dropout = 0.2};
  TrainingCase without = training;
  without.dropout = 0;

  std::vector<TrainingOutcome> alone = TrainWorld(1, training);
  std::vector<TrainingOutcome> together = TrainWorld(3, training);
  std::vector<TrainingOutcome> without_dropout = TrainWorld(1, without);

  ASSERT_FALSE(alone.empty());
  ASSERT_FALSE(together.empty());
  ASSERT_FALSE(without_dropout.empty());
  ExpectNear(together[0].losses, alone[0].losses, 1e-10);
  EXPECT_NE(alone[0].losses, without_dropout[0].losses);
}

// The dropout of a sample does not depend on the size of micro-batches either.
TEST(Dropout, OfEachSampleIsTheSameInMicroBatchesOfAnySize) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    TrainingCase training{.type = at::kDouble, .steps = 10, .global = 12, .micro = 1, .family = family, .dropout = 0.2};
    training.lora = family == ModelFamily::kLlama;
    TrainingCase two = training, four = training;
    two.micro = 2;
    four.micro = 4;

    std::vector<TrainingOutcome> ones = TrainWorld(1, training), twos = TrainWorld(2, two), fours = TrainWorld(3, four);

    ASSERT_FALSE(ones.empty() || twos.empty() || fours.empty());
    ExpectNear(twos[0].losses, ones[0].losses, 1e-12);
    ExpectNear(fours[0].losses, ones[0].losses, 1e-12);
    ExpectNear(fours[0].norms, ones[0].norms, 1e-10);
  }
}

// With more ranks than micro-batches, a rank without work still takes part in every reduction.
TEST(UnevenDeal, RankWithoutAMicroBatch_AddsNothing) {
  TrainingCase training{.type = at::kDouble, .steps = 5, .global = 2, .micro = 1};

  std::vector<TrainingOutcome> ranks = TrainWorld(3, training);

  ASSERT_EQ(ranks.size(), 3u);
  ExpectNear(ranks[0].losses, Oracle(training).losses, 1e-10);
  EXPECT_EQ(ranks[2].parameters_hash, ranks[0].parameters_hash);
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"train", trainyard::TrainMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
