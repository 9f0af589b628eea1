// policy/straggler: lasting slowness is reported once, and its end once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/policy/straggler.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kTrainStart = absl::FromUnixSeconds(1'700'000'000);

std::vector<StragglerFacts> Ranks(std::vector<double> seconds) {
  std::vector<StragglerFacts> ranks;
  for (double s : seconds) {
    ranks.push_back({.rank = static_cast<uint32_t>(ranks.size()), .host = "w1", .micro_batch_s = s});
  }
  return ranks;
}

TEST(StragglerTest, SlowRank_IsNamedAfter30Seconds_AndItsEndIsReportedOnce) {
  auto ranks = Ranks({0.020, 0.021, 0.040, 0.020});

  EXPECT_THAT(FindStragglers(kTrainStart, ranks), IsEmpty());
  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(29), ranks), IsEmpty());
  auto changes = FindStragglers(kTrainStart + absl::Seconds(30), ranks);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 2u);
  EXPECT_TRUE(changes[0].is_straggler);
  EXPECT_THAT(changes[0].text, HasSubstr("rank 2 on w1 is slow: 40.0 ms per micro-batch, 2.00 times the median"));
  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(31), ranks), IsEmpty());

  ranks[2].micro_batch_s = 0.025;  // between the two limits: still a straggler
  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(40), ranks), IsEmpty());
  ranks[2].micro_batch_s = 0.022;
  auto over = FindStragglers(kTrainStart + absl::Seconds(50), ranks);
  ASSERT_THAT(over, SizeIs(1));
  EXPECT_FALSE(over[0].is_straggler);
}

TEST(StragglerTest, StagesOfAPipeline_AreNotComparedWithEachOther) {
  auto ranks = Ranks({0.020, 0.021, 0.050, 0.100, 0.051});
  for (uint64_t i = 2; i < 5; ++i) ranks[i].stage = 1;
  auto one_per_stage = Ranks({0.020, 0.200});
  one_per_stage[1].stage = 1;

  FindStragglers(kTrainStart, ranks);
  FindStragglers(kTrainStart, one_per_stage);
  const auto changes = FindStragglers(kTrainStart + absl::Seconds(30), ranks);

  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 3u);
  EXPECT_THAT(changes[0].text, HasSubstr("times the median of the other ranks of stage 1"));
  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(60), one_per_stage), IsEmpty());
}

TEST(StragglerTest, TemporarySlowness_IsNotReported) {
  auto ranks = Ranks({0.020, 0.040});

  FindStragglers(kTrainStart, ranks);
  ranks[1].micro_batch_s = 0.020;
  FindStragglers(kTrainStart + absl::Seconds(20), ranks);
  ranks[1].micro_batch_s = 0.040;

  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(31), ranks), IsEmpty());
}

TEST(StragglerTest, TwoRanksAreComparedWithEachOther_AndASingleRankIsNeverNamed) {
  auto two = Ranks({0.050, 0.020});
  auto one = Ranks({0.050});
  auto unknown = Ranks({0.050, 0});

  for (int second = 0; second <= 40; ++second) {
    absl::Time now = kTrainStart + absl::Seconds(second);
    EXPECT_THAT(FindStragglers(now, one), IsEmpty());
    EXPECT_THAT(FindStragglers(now, unknown), IsEmpty());
    EXPECT_EQ(FindStragglers(now, two).size(), second == 30 ? 1u : 0u) << second;
  }
  EXPECT_TRUE(two[0].is_straggler);
  EXPECT_FALSE(two[1].is_straggler);
}

TEST(StragglerTest, DifferencesBelowAMillisecond_AreIgnored) {
  auto ranks = Ranks({0.0005, 0.0005, 0.0012});

  FindStragglers(kTrainStart, ranks);

  EXPECT_THAT(FindStragglers(kTrainStart + absl::Seconds(60), ranks), IsEmpty());
}

TEST(ComputeWindowTest, UsesTimesPerMicroBatch_SoThatAnUnevenNumberOfThemDoesNotMatter) {
  // Five micro-batches per step for two ranks: one runs three, the other two.
  ComputeWindow three;
  ComputeWindow two;
  for (uint64_t second = 0; second <= 40; ++second) {
    absl::Time at = kTrainStart + absl::Seconds(static_cast<int64_t>(second));
    three.Add(at, static_cast<double>(second) * 3 * 0.02, second * 3, second, static_cast<double>(second) * 0.02);
    two.Add(at, static_cast<double>(second) * 2 * 0.02, second * 2, second);
  }

  EXPECT_NEAR(three.MicroBatchSeconds(), 0.02, 1e-9);
  EXPECT_NEAR(two.MicroBatchSeconds(), 0.02, 1e-9);
  EXPECT_NEAR(three.StepSeconds(), 0.06, 1e-9);
  EXPECT_NEAR(three.WaitShare(), 0.25, 1e-9);
  EXPECT_EQ(two.WaitShare(), 0);
}

TEST(ComputeWindowTest, IsUnknownBeforeTenSeconds_AndForgetsSamplesOlderThanThirty) {
  ComputeWindow window;
  double total = 0;
  for (int second = 0; second <= 100; ++second) {
    // Slow until second 50, then fast.
    total += second < 50 ? 0.1 : 0.01;
    window.Add(kTrainStart + absl::Seconds(second), total, static_cast<uint64_t>(second + 1), 1);
    ASSERT_TRUE(second >= 10 || window.MicroBatchSeconds() == 0) << second;
  }

  EXPECT_NEAR(window.MicroBatchSeconds(), 0.01, 1e-9);
}

TEST(ComputeWindowTest, TotalsOfANewTrainer_StartAgain) {
  ComputeWindow window;
  for (int second = 0; second <= 20; ++second) {
    window.Add(kTrainStart + absl::Seconds(second), second * 0.1, static_cast<uint64_t>(second + 1), 1);
  }

  window.Add(kTrainStart + absl::Seconds(24), 0.01, 1, 1);

  EXPECT_EQ(window.MicroBatchSeconds(), 0);
}

}  // namespace
}  // namespace trainyard
