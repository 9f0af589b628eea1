// The goodput ledger: every rank-millisecond is in exactly one part, for any order of events.
#include "coordinator/policy/goodput.h"

#include <gtest/gtest.h>

#include <random>

namespace trainyard {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000;

uint64_t Accounted(const v1::GoodputRecord& ledger, uint64_t ranks) {
  return static_cast<uint64_t>(ledger.until_unix_ms() - ledger.begin_unix_ms()) * ranks;
}

TEST(Goodput, Failure_MovesUnsavedTimeToLost_AndSilenceToDetect) {
  v1::GoodputRecord ledger = BeginGoodput(kBegin);
  Account(GoodputPart::kQueue, kBegin + 1'000, 2, ledger);
  Account(GoodputPart::kStart, kBegin + 3'000, 2, ledger);
  Account(GoodputPart::kTrain, kBegin + 5'000, 2, ledger);
  StepCompleted(ledger);
  Account(GoodputPart::kSave, kBegin + 5'500, 2, ledger);
  StepsSaved(ledger);
  Account(GoodputPart::kTrain, kBegin + 7'500, 2, ledger);
  StepCompleted(ledger);
  Account(GoodputPart::kTrain, kBegin + 8'500, 2, ledger);
  StepsLost(ledger);
  Account(GoodputPart::kRecover, kBegin + 9'000, 2, ledger);

  v1::Goodput goodput = MakeGoodput(ledger);
  EXPECT_EQ(goodput.queue_s(), 2);
  EXPECT_EQ(goodput.start_s(), 4);
  EXPECT_EQ(goodput.train_s(), 4) << "the two seconds before the save, of two ranks";
  EXPECT_EQ(goodput.save_s(), 1);
  EXPECT_EQ(goodput.lost_s(), 4) << "steps after the save";
  EXPECT_EQ(goodput.detect_s(), 2) << "the time after the last of these steps";
  EXPECT_EQ(goodput.recover_s(), 1);
  EXPECT_EQ(goodput.total_s(), 18);
}

TEST(Goodput, EachState_CountsInOnePartOfTheGoodput) {
  auto part = [](v1::JobState state, uint64_t generation, bool makes_steps, bool saves) {
    return CurrentPart({.state = state, .generation = generation, .makes_steps = makes_steps, .saves = saves});
  };
  EXPECT_EQ(part(v1::JOB_STATE_QUEUED, 0, false, false), GoodputPart::kQueue);
  EXPECT_EQ(part(v1::JOB_STATE_PLACED, 1, false, false), GoodputPart::kStart);
  EXPECT_EQ(part(v1::JOB_STATE_STARTING, 2, false, false), GoodputPart::kRecover);
  EXPECT_EQ(part(v1::JOB_STATE_RUNNING, 2, true, false), GoodputPart::kTrain);
  EXPECT_EQ(part(v1::JOB_STATE_RUNNING, 2, true, true), GoodputPart::kSave);
  EXPECT_EQ(part(v1::JOB_STATE_STOPPING, 1, true, true), GoodputPart::kSave);
  EXPECT_EQ(part(v1::JOB_STATE_STOPPING, 1, false, true), GoodputPart::kRecover);
  EXPECT_EQ(part(v1::JOB_STATE_RECOVERING, 1, false, false), GoodputPart::kRecover);
  EXPECT_EQ(part(v1::JOB_STATE_PAUSED, 1, false, false), GoodputPart::kPause);
}

TEST(Goodput, ClockThatWasSetBack_AddsNothing_AndTimeCountsFromItsNewValue) {
  v1::GoodputRecord ledger = BeginGoodput(kBegin);
  Account(GoodputPart::kTrain, kBegin + 10'000, 1, ledger);
  Account(GoodputPart::kTrain, kBegin + 4'000, 1, ledger);
  EXPECT_EQ(TotalMs(ledger), 10'000u);
  Account(GoodputPart::kPause, kBegin + 5'000, 1, ledger);
  EXPECT_EQ(ledger.pause_ms(), 1'000u);
  EXPECT_EQ(TotalMs(ledger), Accounted(ledger, 1));
}

TEST(Goodput, ClockThatWasSetWhileACoordinatorRan_AddsNothingWhenTheNextOneStarts) {
  for (const int64_t set_by : {3'600'000, -3'600'000}) {
    v1::GoodputRecord ledger = BeginGoodput(kBegin);
    Account(GoodputPart::kTrain, kBegin + 10'000, 1, ledger);
    ledger.set_wall_ahead_ms(set_by);
    FollowWallClock(ledger);
    Account(GoodputPart::kTrain, kBegin + 12'000 + set_by, 1, ledger);
    EXPECT_EQ(ledger.train_ms(), 12'000u);
    EXPECT_EQ(TotalMs(ledger), Accounted(ledger, 1));
  }
}

TEST(Goodput, StepThatIsReportedLate_IsLost_AndOnlyTheTimeSinceItCountsAsDetection) {
  v1::GoodputRecord ledger = BeginGoodput(kBegin);
  Account(GoodputPart::kTrain, kBegin + 10'000, 2, ledger);
  StepCompleted(ledger, /*since_ms=*/2 * 3'000);
  StepCompleted(ledger, /*since_ms=*/2 * 4'000);
  StepsLost(ledger);

  EXPECT_EQ(ledger.lost_ms(), 2 * 7'000u);
  EXPECT_EQ(ledger.detect_ms(), 2 * 3'000u);
}

TEST(Goodput, StepThatWasCompletedAfterTheLedgerWasRecorded_IsCountedByTheNextCoordinator) {
  v1::GoodputRecord ledger = BeginGoodput(kBegin);
  Account(GoodputPart::kTrain, kBegin + 1'000, 2, ledger);
  CountRecordedStep(kBegin + 7'000, 2, ledger);
  CountRecordedStep(kBegin + 6'000, 2, ledger);
  CountRecordedStep(0, 2, ledger);
  Account(GoodputPart::kTrain, kBegin + 10'000, 2, ledger);
  StepsLost(ledger);

  EXPECT_EQ(ledger.lost_ms(), 2 * 7'000u);
  EXPECT_EQ(ledger.detect_ms(), 2 * 3'000u);
  EXPECT_EQ(TotalMs(ledger), Accounted(ledger, 2));
}

TEST(Goodput, AnyOrderOfEvents_AddsUpExactly) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    auto pick = [&random](uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random); };
    const uint64_t ranks = 1 + pick(70'000);
    v1::GoodputRecord ledger = BeginGoodput(kBegin);
    int64_t now = kBegin;
    for (int i = 0; i < 500; ++i) {
      now += static_cast<int64_t>(pick(100'000));
      if (pick(40) == 0) now -= static_cast<int64_t>(pick(1'000'000));
      Account(kGoodputParts[pick(std::size(kGoodputParts))], now, ranks, ledger);
      switch (pick(5)) {
        case 0:
          StepCompleted(ledger);
          break;
        case 1:
          StepsSaved(ledger);
          break;
        case 2:
          StepsLost(ledger);
          break;
        default:
          break;
      }
      ASSERT_EQ(TotalMs(ledger), Accounted(ledger, ranks)) << "seed " << seed << ", event " << i;
      ASSERT_LE(ledger.since_saved_ms(), ledger.train_ms()) << "seed " << seed << ", event " << i;
      ASSERT_LE(ledger.since_step_ms(), ledger.since_saved_ms()) << "seed " << seed << ", event " << i;
    }
  }
}

}  // namespace
}  // namespace trainyard
