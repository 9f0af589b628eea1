// The drawing of a schedule as an SVG document.
#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "plan/schedule_drawing.h"

namespace trainyard {
namespace {

constexpr double kMargin = 16, kNameWidth = 64, kTitleHeight = 32, kRowHeight = 28, kBoxHeight = 24;
constexpr double kShortestBox = 30, kWidest = 6000;  // pixels; long schedules get narrower boxes
constexpr double kCharacterWidth = 6.5;              // of a label, at 11 pixels

struct KindStyle {
  const char* colour;
  const char* meaning;
};
// The colour and the meaning of each PipelineAction::Kind. Black text is readable on all colours, and they can be
// distinguished without full colour vision.
constexpr std::array<KindStyle, 4> kStyles = {{{"#8ecae6", "F: forward"},
                                               {"#ffb703", "B: backward"},
                                               {"#fb8500", "I: gradients of inputs"},
                                               {"#b7e4c7", "W: gradients of weights"}}};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

double PixelsPerTime(const PipelineSimulation& simulation) {
  double shortest = simulation.total;
  for (const std::vector<ActionTimes>& times : simulation.times) {
    for (const ActionTimes& action : times) {
      if (action.end > action.start) shortest = std::min(shortest, action.end - action.start);
    }
  }
  return std::min(kShortestBox / shortest, kWidest / simulation.total);
}

std::string Text(double x, double y, absl::string_view text, absl::string_view attributes = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, attributes, Escaped(text));
}

// Later chunks are paler, as in the figures of Megatron-LM.
std::string Box(const PipelineAction& action, int chunks_per_rank, const ActionTimes& times, int rank, double scale) {
  const std::string label = ActionText(action, chunks_per_rank);
  const double x = kMargin + kNameWidth + times.start * scale, width = (times.end - times.start) * scale;
  const double y = kTitleHeight + rank * kRowHeight;
  std::string box = absl::StrFormat(
      "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\" fill-opacity=\"%.2f\" stroke=\"#555555\" "
      "stroke-width=\"0.5\">"
      "<title>%s of rank %d: %s to %s</title></rect>\n",
      x, y, width, kBoxHeight, kStyles[action.kind].colour, 1 - 0.7 * action.chunk / chunks_per_rank, label, rank,
      absl::StrCat(times.start), absl::StrCat(times.end));
  if (width > kCharacterWidth * static_cast<double>(label.size())) {
    box += Text(x + width / 2, y + 16, label, " text-anchor=\"middle\"");
  }
  return box;
}

std::string Legend(const PipelineSchedule& schedule, double y) {
  std::array<bool, 4> used = {};
  for (const std::vector<PipelineAction>& list : schedule.ranks) {
    for (const PipelineAction& action : list) used[action.kind] = true;
  }
  std::string legend;
  double x = kMargin + kNameWidth;
  for (size_t kind = 0; kind < kStyles.size(); ++kind) {
    if (!used[kind]) continue;
    const absl::string_view meaning = kStyles[kind].meaning;
    absl::StrAppendFormat(&legend, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x, y - 11,
                          kStyles[kind].colour);
    legend += Text(x + 20, y, meaning);
    x += 40 + kCharacterWidth * static_cast<double>(meaning.size());
  }
  return legend;
}

}  // namespace

absl::StatusOr<std::string> ScheduleSvg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                                        absl::string_view title) {
  int64_t actions = 0;
  for (const std::vector<PipelineAction>& list : schedule.ranks) actions += static_cast<int64_t>(list.size());
  if (actions > kMaxSvgActions) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", actions, " actions; an SVG file shows at most ",
                                                   kMaxSvgActions, "; draw fewer stages or micro-batches"));
  }
  const double scale = PixelsPerTime(simulation);
  const double rows = kRowHeight * static_cast<double>(schedule.ranks.size());
  // The drawing of a short schedule is still wide enough for the title and the legend.
  const double drawing =
      std::max({simulation.total * scale, 420.0, kCharacterWidth * static_cast<double>(title.size())});
  const double width = 2 * kMargin + kNameWidth + drawing, height = kTitleHeight + rows + 40;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      width, height, width, height, Escaped(title));
  svg += Text(kMargin, 20, title, " font-size=\"13\"");
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const double y = kTitleHeight + static_cast<double>(rank) * kRowHeight;
    svg += Text(kMargin, y + 16, absl::StrCat("rank ", rank));
    absl::StrAppendFormat(&svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"#eeeeee\"/>\n",
                          kMargin + kNameWidth, y, simulation.total * scale, kBoxHeight);
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      svg += Box(schedule.ranks[rank][i], schedule.shape.chunks_per_rank, simulation.times[rank][i],
                 static_cast<int>(rank), scale);
    }
  }
  svg += Legend(schedule, kTitleHeight + rows + 20);
  return svg + "</svg>\n";
}

}  // namespace trainyard
