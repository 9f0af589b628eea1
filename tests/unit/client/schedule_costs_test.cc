// The durations of `trainctl schedule` for each number of micro-batches, and the comparison of these numbers.
#include "client/schedule_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/schedule_view.h"

namespace trainyard::client {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

ScheduleResult ResultOf(const ScheduleDurations& durations, int micro_batches,
                        ScheduleKind kind = ScheduleKind::kOneForwardOneBackward) {
  ScheduleResult result;
  result.kind = kind;
  result.shape = {.stages = 4, .micro_batches = micro_batches};
  const auto step = CostsOfStep(durations, result.shape);
  result.status = step.status();
  if (!step.ok()) return result;
  result.schedule = *MakeSchedule(kind, result.shape);
  result.simulation = *Simulate(result.schedule, step->costs);
  result.overhead = step->overhead / (result.simulation.total * result.shape.stages);
  result.samples = step->samples;
  return result;
}

std::vector<ScheduleResult> ResultsOf(const ScheduleDurations& durations, const std::vector<int>& numbers) {
  std::vector<ScheduleResult> results;
  for (const int number : numbers) results.push_back(ResultOf(durations, number));
  return results;
}

std::string Problems(const ScheduleDurations& durations) { return absl::StrJoin(DurationProblems(durations), "\n"); }

TEST(CostsOfStep, WithoutSamplesEveryMicroBatchHasTheGivenDurations) {
  const ScheduleDurations durations{.forward = {3}, .backward = {8}, .link = 0.5, .weight_share = 0.25};

  const auto step = CostsOfStep(durations, {.stages = 2, .chunks_per_rank = 2, .micro_batches = 64});

  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_THAT(step->costs.forward, ElementsAre(1.5));
  EXPECT_THAT(step->costs.backward, ElementsAre(4));
  EXPECT_THAT(step->costs.backward_input, ElementsAre(3));
  EXPECT_THAT(step->costs.backward_weight, ElementsAre(1));
  EXPECT_EQ(step->costs.link, 0.5);
  EXPECT_EQ(step->overhead, 0);
}

TEST(CostsOfStep, AnActionTakesItsFixedDurationAndThatOfItsSamples) {
  const ScheduleDurations durations{.forward = {3, 5},
                                    .backward = {4},
                                    .link = 0.25,
                                    .samples = 32,
                                    .fixed_forward = {0.5},
                                    .fixed_backward = {1, 2},
                                    .fixed_link = 2};

  const auto step = CostsOfStep(durations, {.stages = 2, .micro_batches = 8});

  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->samples, 4);
  EXPECT_THAT(step->costs.forward, ElementsAre(12.5, 20.5));
  EXPECT_THAT(step->costs.backward, ElementsAre(17, 18));
  EXPECT_EQ(step->costs.link, 3);
  EXPECT_EQ(step->overhead, 8 * (0.5 + 0.5 + 1 + 2));
}

TEST(CostsOfStep, EveryChunkHasTheFixedDuration) {
  const ScheduleDurations durations{.samples = 8, .fixed_forward = {0.5}};

  const auto step = CostsOfStep(durations, {.stages = 2, .chunks_per_rank = 2, .micro_batches = 4});

  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_THAT(step->costs.forward, ElementsAre(1.5));  // half of two samples, and the fixed part
  EXPECT_EQ(step->overhead, 4 * 4 * 0.5);
}

TEST(CostsOfStep, MeasuredDurationsAreThoseForTheNumberOfMicroBatches) {
  const ScheduleDurations durations{.measured = {{4, 10, 20}, {8, 6, 12, 0.5}}};

  const auto step = CostsOfStep(durations, {.stages = 2, .micro_batches = 8});

  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_THAT(step->costs.forward, ElementsAre(6));
  EXPECT_THAT(step->costs.backward, ElementsAre(12));
  EXPECT_EQ(step->costs.link, 0.5);
  EXPECT_EQ(step->samples, 0);
  EXPECT_EQ(step->overhead, 2 * (8 * 18 - 4 * 30));
  EXPECT_THAT(std::string(CostsOfStep(durations, {.stages = 2, .micro_batches = 2}).status().message()),
              HasSubstr("--measured has no durations for 2 micro-batches; it has 4, 8"));
}

TEST(CostsOfStep, NamesTheNearestNumbersThatDivideTheSamples) {
  const auto message = [](int samples, int micro_batches) {
    const ScheduleDurations durations{.samples = samples};
    return std::string(CostsOfStep(durations, {.stages = 2, .micro_batches = micro_batches}).status().message());
  };
  EXPECT_EQ(message(36, 7), "7 micro-batches cannot divide 36 samples equally; use 6 or 9 micro-batches");
  EXPECT_EQ(message(2147483647, 2),
            "2 micro-batches cannot divide 2147483647 samples equally; use 1 or 2147483647 "
            "micro-batches");
  EXPECT_EQ(message(32, 33), "33 micro-batches cannot divide 32 samples equally; use 32 or fewer micro-batches");
}

TEST(CostsOfStep, RefusesListsOfDifferentLength) {
  const ScheduleDurations durations{.forward = {1, 2}, .samples = 8, .fixed_forward = {1, 2, 3}};

  EXPECT_THAT(std::string(CostsOfStep(durations, {.stages = 2, .micro_batches = 8}).status().message()),
              HasSubstr("--forward has 2 durations and --fixed-forward has 3"));
}

TEST(DurationProblems, ReportsEveryProblem) {
  const double nan = std::numeric_limits<double>::quiet_NaN();

  EXPECT_THAT(
      Problems({.weight_share = 2,
                .samples = 0,
                .fixed_forward = {-1},
                .fixed_backward = {nan},
                .measured = {{1, 1, 1}, {1, 2, 2}}}),
      AllOf(HasSubstr("--weight-share is 2; it must be 0 to 1"), HasSubstr("--samples is 0; it must be 1 or more"),
            HasSubstr("--fixed-forward is -1; it must be"), HasSubstr("--fixed-backward is nan; it must be finite"),
            HasSubstr("--measured has the durations already; remove --samples"),
            HasSubstr("--measured has two entries for 1 micro-batch; remove one")));
  EXPECT_THAT(Problems({.forward = {-5}, .samples = 4, .fixed_forward = {100}}), HasSubstr("--forward is -5; it must"));
  EXPECT_THAT(Problems({.fixed_link = 1}), HasSubstr("add to the durations of samples; give --samples"));
  EXPECT_THAT(Problems({.forward = {1}, .backward = {1}, .link = 1, .measured = {{1, 1, 1}}}),
              HasSubstr("remove --forward, --backward, --link"));
  EXPECT_THAT(DurationProblems({.samples = 4, .fixed_forward = {1}}), IsEmpty());
}

TEST(ParseMeasured, ReadsThreeOrFourNumbers) {
  EXPECT_EQ(ParseMeasured("8:1.5:2")->backward, 2);
  EXPECT_EQ(ParseMeasured("8:1.5:2:0.25")->link, 0.25);
  for (const char* text : {"", "8", "8:1", "8:1:2:3:4", "8:x:2", "many:1:2", "0:1:2", "-1:1:2", "8:0:1", "8:1:-2",
                           "8:inf:1", "8:1:2:nan", "99999999999:1:2"}) {
    EXPECT_THAT(std::string(ParseMeasured(text).status().message()), StartsWith("--measured: '")) << text;
  }
}

TEST(FastestText, TooFewAndTooManyMicroBatchesAreSlower) {
  const ScheduleDurations durations{.samples = 32, .fixed_forward = {0.5}, .fixed_backward = {1}};

  const std::vector<ScheduleResult> results = ResultsOf(durations, {1, 2, 4, 8, 16, 32});

  // The time of M micro-batches is (M + 3) (1.5 + 96 / M).
  EXPECT_THAT(results[0].simulation.total, DoubleNear(390, 1e-9));
  EXPECT_THAT(results[4].simulation.total, DoubleNear(142.5, 1e-9));
  EXPECT_THAT(results[5].simulation.total, DoubleNear(157.5, 1e-9));
  EXPECT_THAT(*results[5].overhead, DoubleNear(32 * 1.5 / 157.5, 1e-12));
  EXPECT_EQ(FastestText(results),
            "Fastest: 1f1b with 16 micro-batches of 2 samples, time 142.5\n"
            "1 micro-batch of 32 samples takes 2.74 times as long: bubble 75.0 %, overhead 0.4 %\n"
            "32 micro-batches of 1 sample take 1.11 times as long: bubble 8.6 %, overhead 30.5 %\n");
}

TEST(FastestText, SaysThatNumbersBeyondTheComparedOnesMayBeFaster) {
  const ScheduleDurations durations{.samples = 32, .fixed_forward = {0.5}, .fixed_backward = {1}};

  EXPECT_THAT(FastestText(ResultsOf(durations, {4, 8})),
              HasSubstr("No larger number was compared; a larger one may be faster"));
  EXPECT_THAT(FastestText(ResultsOf(durations, {16, 32})), HasSubstr("No smaller number was compared"));
  const std::string free = FastestText(ResultsOf({.samples = 32}, {1, 32}));
  EXPECT_THAT(free, AllOf(HasSubstr("Fastest: 1f1b with 32 micro-batches"), Not(HasSubstr("No larger"))))
      << "a micro-batch has at least one sample";
}

TEST(FastestText, ComparesSchedulesOfOneStep_AndPrefersLessMemory) {
  const ScheduleDurations durations{.samples = 8};
  const std::vector<ScheduleResult> results = {ResultOf(durations, 8, ScheduleKind::kGpipe), ResultOf(durations, 8),
                                               ResultOf(durations, 3)};

  EXPECT_EQ(FastestText(results), "Fastest: 1f1b with 8 micro-batches of 1 sample, time 33\n");
  EXPECT_THAT(FastestText({results[0]}), IsEmpty()) << "nothing to compare";
}

}  // namespace
}  // namespace trainyard::client
