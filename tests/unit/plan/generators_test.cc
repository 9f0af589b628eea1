// The lists that MakeSchedule returns, against lists written by hand, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include "plan/pipeline_schedule.h"
#include "plan/schedule_check.h"
#include "plan/schedule_simulation.h"

namespace trainyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ListsOf(ScheduleKind kind, const PipelineShape& shape, const SimulatedOptions& options = {}) {
  auto schedule = MakeSchedule(kind, shape, options);
  return schedule.ok() ? ScheduleLists(*schedule) : schedule.status().ToString();
}

std::string RefusalOf(ScheduleKind kind, const PipelineShape& shape, const SimulatedOptions& options = {}) {
  return std::string(MakeSchedule(kind, shape, options).status().message());
}

TEST(Generators, GpipeRunsBackwardInReverseOrder) {
  EXPECT_EQ(ListsOf(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 4}),
            "rank 0: F0 F1 F2 F3 B3 B2 B1 B0\n"
            "rank 1: F0 F1 F2 F3 B3 B2 B1 B0\n");
}

TEST(Generators, OneForwardOneBackwardAlternatesAfterItsWarmUp) {
  EXPECT_EQ(ListsOf(ScheduleKind::kOneForwardOneBackward, {.stages = 4, .micro_batches = 6}),
            "rank 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5\n"
            "rank 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5\n"
            "rank 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5\n"
            "rank 3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5\n");
}

TEST(Generators, OneForwardOneBackwardAcceptsFewerMicroBatchesThanStages) {
  EXPECT_EQ(ListsOf(ScheduleKind::kOneForwardOneBackward, {.stages = 4, .micro_batches = 2}),
            "rank 0: F0 F1 B0 B1\n"
            "rank 1: F0 F1 B0 B1\n"
            "rank 2: F0 F1 B0 B1\n"
            "rank 3: F0 B0 F1 B1\n");
}

TEST(Generators, InterleavedVisitsItsChunksRoundByRound) {
  EXPECT_EQ(ListsOf(ScheduleKind::kInterleaved, {.stages = 2, .chunks_per_rank = 2, .micro_batches = 4}),
            "rank 0: F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3\n"
            "rank 1: F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3\n");
}

TEST(Generators, ZeroBubbleFillsTheBubbleWithWeightGradients) {
  EXPECT_EQ(ListsOf(ScheduleKind::kZeroBubble, {.stages = 2, .micro_batches = 3}),
            "rank 0: F0 F1 I0 W0 I1 F2 W1 I2 W2\n"
            "rank 1: F0 I0 F1 I1 W0 W1 F2 I2 W2\n");
}

TEST(Generators, OneStageWithOneChunkIsTheSameListForEveryKind) {
  for (const ScheduleKind kind : AllScheduleKinds()) {
    EXPECT_EQ(ListsOf(kind, {.stages = 1, .micro_batches = 3}), "rank 0: F0 B0 F1 B1 F2 B2\n") << ScheduleName(kind);
  }
}

TEST(Generators, SeveralChunksOfOneStageRunEachMicroBatchAlone) {
  EXPECT_EQ(ListsOf(ScheduleKind::kInterleaved, {.stages = 1, .chunks_per_rank = 2, .micro_batches = 2}),
            "rank 0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1\n");
}

TEST(Generators, OneMicroBatchIsTheNaivePipeline) {
  for (const ScheduleKind kind :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kSimulated}) {
    EXPECT_EQ(ListsOf(kind, {.stages = 3, .micro_batches = 1}), "rank 0: F0 B0\nrank 1: F0 B0\nrank 2: F0 B0\n")
        << ScheduleName(kind);
  }
}

TEST(Generators, EveryScheduleRunsWithTwoSlotsPerLink) {
  for (const ScheduleKind kind : AllScheduleKinds()) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= (kind == ScheduleKind::kInterleaved ? 4 : 1); ++chunks) {
        for (int m = 1; m <= 4 * stages + 3; ++m) {
          const PipelineShape shape{.stages = stages, .chunks_per_rank = chunks, .micro_batches = m};
          auto schedule = MakeSchedule(kind, shape);
          if (kind == ScheduleKind::kInterleaved && !schedule.ok()) continue;
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          const absl::Status checked = CheckSchedule(*schedule);
          EXPECT_TRUE(checked.ok()) << ScheduleName(kind) << " " << checked;
        }
      }
    }
  }
}

TEST(Generators, AListScheduleRunsWithOneSlotPerLinkAndUnequalCosts) {
  const PipelineCosts costs{.forward = {1, 9, 0.5, 3},
                            .backward = {7, 1, 2, 11},
                            .backward_input = {0.1, 5, 1, 3},
                            .backward_weight = {0, 1, 8, 2},
                            .link = 2.5,
                            .slots_per_link = 1};
  for (const ScheduleKind kind : {ScheduleKind::kZeroBubble, ScheduleKind::kSimulated}) {
    for (const int in_flight : {1, 2, 5, 40}) {
      auto schedule = MakeSchedule(kind, {.stages = 4, .micro_batches = 13}, {.costs = costs, .in_flight = in_flight});
      ASSERT_TRUE(schedule.ok()) << schedule.status();

      auto simulation = Simulate(*schedule, costs);

      ASSERT_TRUE(simulation.ok()) << simulation.status();
      for (const int peak : simulation->peak_in_flight) EXPECT_LE(peak, in_flight) << ScheduleName(kind);
    }
  }
}

TEST(Generators, InterleavedNamesTheNearestNumbersOfMicroBatchesThatItAccepts) {
  EXPECT_EQ(
      RefusalOf(ScheduleKind::kInterleaved, {.stages = 4, .chunks_per_rank = 2, .micro_batches = 9}),
      "schedule interleaved cannot take 9 micro-batches on 4 stages: 9 / 4, rounded down, gives 2 rounds, which do "
      "not divide 9; use 8 or 10 micro-batches");
  EXPECT_EQ(RefusalOf(ScheduleKind::kInterleaved, {.stages = 5, .chunks_per_rank = 2, .micro_batches = 14}),
            "schedule interleaved cannot take 14 micro-batches on 5 stages: 14 / 5, rounded down, gives 2 rounds of 7 "
            "micro-batches, "
            "and the links have slots for rounds of at most 6; use 12 or 15 micro-batches");
}

TEST(Generators, AllProblemsOfAShapeAreReportedTogether) {
  EXPECT_THAT(RefusalOf(ScheduleKind::kGpipe, {.stages = 0, .chunks_per_rank = 2, .micro_batches = -3},
                        {.costs = {}, .in_flight = -1}),
              AllOf(HasSubstr("stages is 0; it must be 1 to 1024"), HasSubstr("micro_batches is -3; it must be 1 to"),
                    HasSubstr("chunks_per_rank is 2; schedule gpipe has 1 chunk per rank; use schedule interleaved"),
                    HasSubstr("in_flight is -1")));
  EXPECT_THAT(RefusalOf(ScheduleKind::kInterleaved, {.stages = 2, .micro_batches = 4}),
              HasSubstr("schedule interleaved needs 2 or more"));
  EXPECT_THAT(RefusalOf(ScheduleKind::kOneForwardOneBackward, {.stages = 1024, .micro_batches = 1 << 20}),
              HasSubstr("1024 stages x 1 chunks x 1048576 micro-batches = 1073741824 forwards"));
  EXPECT_THAT(RefusalOf(ScheduleKind::kSimulated, {.stages = 2, .micro_batches = 4},
                        {.costs = {.forward = {1, 2, 3},
                                   .backward = {-1},
                                   .link = std::numeric_limits<double>::infinity(),
                                   .slots_per_link = 0}}),
              AllOf(HasSubstr("the costs of forward have 3 entries; expected 1, or one for each of the 2 model chunks"),
                    HasSubstr("the cost of backward is -1"), HasSubstr("the cost of link is inf"),
                    HasSubstr("slots_per_link is 0")));
}

TEST(Generators, AMisspeltNameListsAllNames) {
  for (const ScheduleKind kind : AllScheduleKinds()) EXPECT_EQ(*ScheduleKindOf(ScheduleName(kind)), kind);
  EXPECT_EQ(ScheduleKindOf("1fb1").status().message(),
            "there is no pipeline schedule '1fb1'; expected gpipe, 1f1b, interleaved, zero_bubble, simulated; did you "
            "mean 1f1b?");
}

}  // namespace
}  // namespace trainyard
