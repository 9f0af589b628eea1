// Drawings of a simulated pipeline schedule, as in the figures of the papers: a row for each rank, and time from left
// to right. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "plan/schedule_simulation.h"

namespace trainyard {

// ScheduleText cuts larger drawings, and says below them where they end. ScheduleSvg refuses larger schedules.
inline constexpr int kMaxDrawnRanks = 64;
inline constexpr int kMaxDrawnColumns = 512;
inline constexpr int64_t kMaxSvgActions = 100'000;

// A column lasts as long as the shortest action. A cell shows the action that runs in the middle of the cell: the first
// cell of an action has its text, the others have '-'; '.' is a bubble. Actions without a duration are not drawn. With
// `line_width` (0: no limit) the drawing is divided into bands that fit.
//
//   time    0              5
//   rank 0  F0 F1 .  .  B0 -  .  B1 -
//   rank 1  .  F0 B0 -  F1 B1 -  .  .
//
// REQUIRES: `simulation` is of `schedule`.
std::string ScheduleText(const PipelineSchedule& schedule, const PipelineSimulation& simulation, int line_width = 0);

// A complete SVG document with `title` above the drawing. Possible errors: InvalidArgument: the schedule has more than
// kMaxSvgActions actions. REQUIRES: `simulation` is of `schedule`.
absl::StatusOr<std::string> ScheduleSvg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                                        absl::string_view title);

}  // namespace trainyard
