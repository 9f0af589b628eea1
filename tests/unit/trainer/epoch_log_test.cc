#include "worker/trainer/epoch_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/temporary_folder.h"
#include "worker/trainer/metrics.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EpochLog, Line_IsTheMeanOverTheTokensOfTheEpoch) {
  EpochLog log(/*samples=*/10, /*consumed=*/0);

  EXPECT_EQ(log.Line({.step = 1, .loss = 3.0, .tokens = 10}, 5), "");
  EXPECT_EQ(log.Line({.step = 2, .loss = 2.0, .tokens = 30}, 10), "Epoch 1: loss = 2.2500");
  EXPECT_EQ(log.Line({.step = 3, .loss = 1.0, .tokens = 10}, 15), "");
  EXPECT_EQ(log.Line({.step = 4, .loss = 1.5, .tokens = 10}, 20), "Epoch 2: loss = 1.2500");
}

TEST(EpochLog, StepInWhichAnEpochEnds_CountsForThatEpoch) {
  EpochLog log(/*samples=*/10, /*consumed=*/0);
  log.Line({.step = 1, .loss = 4.0, .tokens = 8}, 8);

  EXPECT_EQ(log.Line({.step = 2, .loss = 2.0, .tokens = 8}, 16), "Epoch 1: loss = 3.0000");
  EXPECT_EQ(log.Line({.step = 3, .loss = 1.0, .tokens = 8}, 24), "Epoch 2: loss = 1.0000");
}

TEST(EpochLog, SeveralEpochsInOneStep_HaveOneLine) {
  EpochLog log(/*samples=*/3, /*consumed=*/0);

  EXPECT_EQ(log.Line({.step = 1, .loss = 4.0, .tokens = 8}, 8), "Epochs 1 to 2: loss = 4.0000");
  EXPECT_EQ(log.Line({.step = 2, .loss = 2.0, .tokens = 8}, 16), "Epochs 3 to 5: loss = 2.0000");
}

TEST(EpochLog, LossThatIsNotFinite_IsLeftOut) {
  EpochLog log(/*samples=*/2, /*consumed=*/0);
  log.Line({.step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .tokens = 8}, 1);

  EXPECT_EQ(log.Line({.step = 2, .loss = 2.0, .tokens = 8}, 2), "Epoch 1: loss = 2.0000");
  EXPECT_EQ(log.Line({.step = 3, .loss = std::numeric_limits<double>::infinity(), .tokens = 8}, 4),
            "Epoch 2: no step had a finite loss");
}

TEST(EpochLog, DataWithoutAnEnd_HasNoEpochs) {
  EpochLog log(/*samples=*/0, /*consumed=*/0);

  EXPECT_EQ(log.Line({.step = 1, .loss = 2.0, .tokens = 8}, 8), "");
}

// A run of `steps` steps of 4 samples each, with losses that have no exact sum, over epochs of 10 samples.
struct Run {
  static constexpr uint64_t kSamples = 10, kBatch = 4;

  static double Epochs(uint64_t step) { return static_cast<double>(step * kBatch) / static_cast<double>(kSamples); }
  static EpochStep Step(uint64_t step) {
    return {.step = step, .loss = 1.0 / static_cast<double>(step), .tokens = 5 + step};
  }
  static void Write(MetricsFile& file, uint64_t step) {
    const EpochStep made = Step(step);
    ASSERT_TRUE(file.Append(MetricsLine(StepRecord{
                                .step = step, .loss = made.loss, .tokens = made.tokens, .epoch = Epochs(step)}))
                    .ok());
    if (step % 3 == 0) {
      ASSERT_TRUE(file.Append(MetricsLine(EvalRecord{.step = step, .loss = 9})).ok());
    }
  }
  static std::vector<std::string> Lines(EpochLog& log, uint64_t first, uint64_t last) {
    std::vector<std::string> lines;
    for (uint64_t step = first; step <= last; ++step) lines.push_back(log.Line(Step(step), step * kBatch));
    return lines;
  }
};

TEST(EpochLog, ResumedRun_WritesTheLinesOfAnUninterruptedOne) {
  constexpr uint64_t kSteps = 23;
  EpochLog whole(Run::kSamples, 0);
  const std::vector<std::string> expected = Run::Lines(whole, 1, kSteps);
  for (uint64_t cut = 1; cut < kSteps; ++cut) {
    TemporaryFolder folder;
    {
      auto file = *MetricsFile::Open(folder / "metrics.jsonl", 0);
      for (uint64_t step = 1; step <= kSteps; ++step) Run::Write(*file, step);  // also those after the checkpoint
    }

    const auto file = *MetricsFile::Open(folder / "metrics.jsonl", cut);
    const MetricsFile::StepsOfEpoch earlier = file->ReadStepsOfEpoch(Run::Epochs(cut));
    EpochLog resumed(Run::kSamples, cut * Run::kBatch, earlier.steps, earlier.is_whole);

    EXPECT_TRUE(earlier.is_whole) << "resumed after step " << cut;
    EXPECT_EQ(Run::Lines(resumed, cut + 1, kSteps), std::vector<std::string>(expected.begin() + cut, expected.end()))
        << "resumed after step " << cut;
  }
}

TEST(EpochLog, ResumeWithoutTheLinesOfEarlierSteps_SaysSo) {
  TemporaryFolder folder;
  const auto file = *MetricsFile::Open(folder / "metrics.jsonl", 4);
  const MetricsFile::StepsOfEpoch earlier = file->ReadStepsOfEpoch(Run::Epochs(4));
  EpochLog log(Run::kSamples, 16, earlier.steps, earlier.is_whole);

  EXPECT_THAT(Run::Lines(log, 5, 8),
              ElementsAre("Epoch 2: loss = 0.2000 (since step 5; the losses of earlier steps are not known)", "", "",
                          ::testing::MatchesRegex("Epoch 3: loss = 0.[0-9]+")));
}

TEST(EpochLog, LinesOfOtherData_AreNotUsed) {
  TemporaryFolder folder;
  const auto file = *MetricsFile::Open(folder / "metrics.jsonl", 0);
  for (uint64_t step = 1; step <= 4; ++step) Run::Write(*file, step);

  const MetricsFile::StepsOfEpoch earlier = file->ReadStepsOfEpoch(1.2);  // the data has grown

  EXPECT_THAT(earlier.steps, IsEmpty());
  EXPECT_FALSE(earlier.is_whole);
}

}  // namespace
}  // namespace trainyard
