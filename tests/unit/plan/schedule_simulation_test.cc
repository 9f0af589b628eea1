// The times of schedules, against the formulas of the papers.
#include "plan/schedule_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace trainyard {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

PipelineSimulation SimulationOf(ScheduleKind kind, const PipelineShape& shape, const SimulatedOptions& options = {}) {
  auto schedule = MakeSchedule(kind, shape, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  auto simulation = Simulate(*schedule, options.costs);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

SimulatedOptions WithCosts(double forward, double backward) {
  return {.costs = {.forward = {forward}, .backward = {backward}}};
}

TEST(Simulate, TheBubbleOfGpipeAnd1f1bIsThatOfTheFormula) {
  for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward}) {
    for (const double backward : {0.5, 1.0, 2.0, 3.7}) {
      for (int p = 1; p <= 8; ++p) {
        for (int m = 1; m <= 20; ++m) {
          const PipelineSimulation simulation =
              SimulationOf(kind, {.stages = p, .micro_batches = m}, WithCosts(1, backward));

          EXPECT_THAT(simulation.bubble, DoubleNear((p - 1.0) / (m + p - 1), 1e-12)) << ScheduleName(kind);
          EXPECT_THAT(simulation.total, DoubleNear((m + p - 1) * (1 + backward), 1e-9));
        }
      }
    }
  }
}

TEST(Simulate, TheBubbleOfInterleavedIsDividedByTheChunks) {
  for (const double backward : {1.0, 2.0, 3.5}) {
    for (int p = 2; p <= 8; ++p) {
      for (int v = 2; v <= 4; ++v) {
        for (int m = p; m <= 4 * p; m += p) {
          const PipelineShape shape{.stages = p, .chunks_per_rank = v, .micro_batches = m};
          EXPECT_THAT(SimulationOf(ScheduleKind::kInterleaved, shape, WithCosts(1, backward)).bubble,
                      DoubleNear((p - 1.0) / (v * m + p - 1), 1e-12))
              << p << " stages, " << v << " chunks, " << m << " micro-batches";
        }
      }
    }
  }
}

TEST(Simulate, OneMicroBatchKeepsOneStageBusyAtATime) {
  const PipelineSimulation simulation = SimulationOf(ScheduleKind::kGpipe, {.stages = 4, .micro_batches = 1});

  EXPECT_DOUBLE_EQ(1 - simulation.bubble, 0.25);
}

TEST(Simulate, ZeroBubbleHasASmallerBubble_EvenSmallerWithOneMoreMicroBatchInFlight) {
  const PipelineShape shape{.stages = 4, .micro_batches = 8};

  EXPECT_THAT(SimulationOf(ScheduleKind::kOneForwardOneBackward, shape).bubble, DoubleNear(0.273, 0.0005));
  EXPECT_THAT(SimulationOf(ScheduleKind::kZeroBubble, shape).bubble, DoubleNear(0.172, 0.0005));
  EXPECT_THAT(SimulationOf(ScheduleKind::kZeroBubble, shape, {.costs = {}, .in_flight = 5}).bubble,
              DoubleNear(0.111, 0.0005));
}

TEST(Simulate, InFlightPeaksAreTheMicroBatchesWhoseActivationsARankHolds) {
  const PipelineShape shape{.stages = 4, .micro_batches = 8};

  EXPECT_THAT(SimulationOf(ScheduleKind::kGpipe, shape).peak_in_flight, Each(8));
  EXPECT_THAT(SimulationOf(ScheduleKind::kOneForwardOneBackward, shape).peak_in_flight, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(SimulationOf(ScheduleKind::kZeroBubble, shape).peak_in_flight, Each(testing::Le(4)));
  EXPECT_THAT(SimulationOf(ScheduleKind::kSimulated, shape, {.costs = {}, .in_flight = 2}).peak_in_flight,
              Each(testing::Le(2)));
}

TEST(Simulate, ActionsHaveTheirTimes) {
  auto schedule = MakeSchedule(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 1});

  auto simulation = Simulate(*schedule, {.forward = {1, 3}, .backward = {5}, .link = 0.5});

  ASSERT_TRUE(simulation.ok()) << simulation.status();
  // F0 of rank 0, the link, F0 and B0 of rank 1, the link, B0 of rank 0.
  EXPECT_EQ(simulation->times[0][0].end, 1);
  EXPECT_EQ(simulation->times[1][0].start, 1.5);
  EXPECT_EQ(simulation->times[1][1].end, 9.5);
  EXPECT_EQ(simulation->times[0][1].start, 10);
  EXPECT_EQ(simulation->total, 15);
  EXPECT_THAT(simulation->busy, ElementsAre(6, 8));
}

TEST(Simulate, ASendWaitsForAFreeSlot) {
  auto schedule = MakeSchedule(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 4});

  auto simulation = Simulate(*schedule, {.forward = {1, 10}, .slots_per_link = 1});

  ASSERT_TRUE(simulation.ok()) << simulation.status();
  // The slot is free for the packet of F1 when rank 1 begins F0, and for the packet of F2 when rank 1 begins F1.
  EXPECT_EQ(simulation->times[0][2].start, 2);
  EXPECT_EQ(simulation->times[0][3].start, 11);
}

TEST(Simulate, TheSimulatedScheduleIsNeverSlowerThan1f1bInTheSameMemory) {
  for (const std::vector<double>& forward : {std::vector<double>{1}, {1, 2, 1, 1}, {4, 1, 1, 3}}) {
    for (const double link : {0.0, 0.3, 2.0}) {
      SimulatedOptions options{.costs = {.forward = forward, .link = link}};
      const PipelineShape shape{.stages = 4, .micro_batches = 12};

      const PipelineSimulation ours = SimulationOf(ScheduleKind::kSimulated, shape, options);
      const PipelineSimulation theirs = SimulationOf(ScheduleKind::kOneForwardOneBackward, shape, options);

      EXPECT_LE(ours.total, theirs.total);
      EXPECT_LE(*std::max_element(ours.peak_in_flight.begin(), ours.peak_in_flight.end()), 4);
    }
  }
}

TEST(Simulate, MoreMemoryHidesASlowLink) {
  SimulatedOptions options{.costs = {.link = 2}};
  const PipelineShape shape{.stages = 4, .micro_batches = 16};
  const double tight = SimulationOf(ScheduleKind::kSimulated, shape, options).total;

  options.in_flight = 8;

  EXPECT_LT(SimulationOf(ScheduleKind::kSimulated, shape, options).total, 0.9 * tight);
}

TEST(Simulate, RefusesCostsAndSchedulesThatCannotRun) {
  auto schedule = *MakeSchedule(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 2});

  EXPECT_THAT(std::string(Simulate(schedule, {.forward = {0}}).status().message()),
              HasSubstr("the cost of forward is 0; it must be finite and positive"));
  schedule.ranks[1].pop_back();
  EXPECT_THAT(std::string(Simulate(schedule, {}).status().message()), HasSubstr("rank 1 lacks B0"));
}

}  // namespace
}  // namespace trainyard
