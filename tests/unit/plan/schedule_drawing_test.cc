// Drawings of schedules as text and as SVG.
#include "plan/schedule_drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_split.h"

namespace trainyard {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct SimulatedSchedule {
  PipelineSchedule schedule;
  PipelineSimulation simulation;
};

SimulatedSchedule SimulatedOf(ScheduleKind kind, const PipelineShape& shape, const PipelineCosts& costs = {}) {
  PipelineSchedule schedule = *MakeSchedule(kind, shape);
  PipelineSimulation simulation = *Simulate(schedule, costs);
  return {std::move(schedule), std::move(simulation)};
}

std::string TextOf(const SimulatedSchedule& simulated, int line_width = 0) {
  return ScheduleText(simulated.schedule, simulated.simulation, line_width);
}

TEST(ScheduleDrawing, TheTextHasARowPerRankAndAColumnPerTimeUnit) {
  EXPECT_EQ(TextOf(SimulatedOf(ScheduleKind::kGpipe, {.stages = 3, .micro_batches = 2})),
            "time    0              5              10\n"
            "rank 0  F0 F1 .  .  .  .  .  .  B1 -  B0 -\n"
            "rank 1  .  F0 F1 .  .  .  B1 -  B0 -  .  .\n"
            "rank 2  .  .  F0 F1 B1 -  B0 -  .  .  .  .\n");
}

TEST(ScheduleDrawing, ALineWidthDividesTheTextIntoBands) {
  EXPECT_EQ(TextOf(SimulatedOf(ScheduleKind::kOneForwardOneBackward, {.stages = 2, .micro_batches = 2}), 24),
            "time    0\n"
            "rank 0  F0 F1 .  .  B0\n"
            "rank 1  .  F0 B0 -  F1\n"
            "\n"
            "time    5\n"
            "rank 0  -  .  B1 -\n"
            "rank 1  B1 -  .  .\n");
}

TEST(ScheduleDrawing, UnevenDurationsAreRoundedToColumns) {
  EXPECT_EQ(TextOf(SimulatedOf(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 1},
                               {.forward = {0.4, 1}, .backward = {0.8}, .link = 0.1})),
            "time    0              2\n"
            "rank 0  F0 .  .  .  .  .  B0 -\n"
            "rank 1  .  F0 -  -  B0 -  .  .\n");
}

TEST(ScheduleDrawing, ALongDrawingIsCutAndSaysSo) {
  const std::string text = TextOf(SimulatedOf(ScheduleKind::kGpipe, {.stages = 70, .micro_batches = 300}));

  EXPECT_THAT(text, AllOf(HasSubstr("\nrank 63 "), Not(HasSubstr("rank 64")),
                          EndsWith("and 6 more ranks\nThe drawing ends at time 512.\n")));
}

TEST(ScheduleDrawing, TheSvgHasABoxWithItsTimesForEveryAction) {
  const SimulatedSchedule simulated =
      SimulatedOf(ScheduleKind::kInterleaved, {.stages = 2, .chunks_per_rank = 2, .micro_batches = 2});

  const auto svg = ScheduleSvg(simulated.schedule, simulated.simulation, "a < b");

  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_THAT(*svg, AllOf(StartsWith("<svg xmlns="), EndsWith("</svg>\n"), HasSubstr("<title>a &lt; b</title>"),
                          HasSubstr("<title>F1.0 of rank 1: 3 to 4</title>"), HasSubstr(">B: backward<"),
                          Not(HasSubstr("W: gradients"))));
  const std::vector<std::string> boxes = absl::StrSplit(*svg, " of rank ");
  EXPECT_EQ(boxes.size() - 1, 16u);
}

TEST(ScheduleDrawing, AnSvgOfTooManyActionsIsRefused) {
  const SimulatedSchedule simulated = SimulatedOf(ScheduleKind::kGpipe, {.stages = 2, .micro_batches = 25'001});

  EXPECT_THAT(std::string(ScheduleSvg(simulated.schedule, simulated.simulation, "").status().message()),
              HasSubstr("the schedule has 100004 actions; an SVG file shows at most 100000"));
}

}  // namespace
}  // namespace trainyard
