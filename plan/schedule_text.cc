// The drawing of a schedule as text.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/plural.h"
#include "plan/schedule_drawing.h"

namespace trainyard {
namespace {

constexpr int kTimeEvery = 5;  // columns between two times of the header

double ShortestDuration(const PipelineSimulation& simulation) {
  double shortest = simulation.total;
  for (const std::vector<ActionTimes>& times : simulation.times) {
    for (const ActionTimes& action : times) {
      if (action.end > action.start) shortest = std::min(shortest, action.end - action.start);
    }
  }
  return shortest;
}

std::vector<std::string> Cells(const std::vector<PipelineAction>& list, const std::vector<ActionTimes>& times,
                               int chunks_per_rank, double unit, int columns) {
  std::vector<std::string> cells(columns, ".");
  // The first column whose middle is not before `time`. Times are sums of durations, hence the tolerance.
  const auto column = [&](double time) {
    return static_cast<int>(std::clamp(std::ceil(time / unit - 0.5 - 1e-6), 0.0, static_cast<double>(columns)));
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const int begin = column(times[i].start), end = column(times[i].end);
    for (int k = begin; k < end; ++k) cells[k] = k == begin ? ActionText(list[i], chunks_per_rank) : "-";
  }
  return cells;
}

std::string Line(absl::string_view name, int name_width, const std::vector<std::string>& cells, int begin, int end,
                 int cell_width) {
  std::string line = absl::StrFormat("%-*s", name_width, std::string(name));
  for (int k = begin; k < end; ++k) absl::StrAppendFormat(&line, "%-*s", cell_width, cells[k]);
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(line), "\n");
}

// The line of times, in which each time has the width of kTimeEvery columns.
std::string TimeLine(int name_width, double unit, int begin, int end, int cell_width) {
  std::string line = absl::StrFormat("%-*s", name_width, "time");
  for (int k = begin; k < end; k += kTimeEvery) {
    absl::StrAppendFormat(&line, "%-*s", kTimeEvery * cell_width, absl::StrCat(k * unit));
  }
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(line), "\n");
}

}  // namespace

std::string ScheduleText(const PipelineSchedule& schedule, const PipelineSimulation& simulation, int line_width) {
  const double unit = ShortestDuration(simulation);
  const double all_columns = std::ceil(simulation.total / unit - 1e-6);
  const int columns = static_cast<int>(std::min<double>(all_columns, kMaxDrawnColumns));
  const size_t ranks = std::min<size_t>(schedule.ranks.size(), kMaxDrawnRanks);
  std::vector<std::vector<std::string>> rows;
  size_t widest = 1;
  for (size_t rank = 0; rank < ranks; ++rank) {
    rows.push_back(Cells(schedule.ranks[rank], simulation.times[rank], schedule.shape.chunks_per_rank, unit, columns));
    for (const std::string& cell : rows.back()) widest = std::max(widest, cell.size());
  }
  const int cell_width = static_cast<int>(widest) + 1;
  const int name_width = static_cast<int>(absl::StrCat("rank ", ranks - 1).size()) + 2;
  int per_band = std::max(columns, 1);
  if (line_width > 0) {
    per_band = std::max(1, (line_width - name_width) / (cell_width * kTimeEvery)) * kTimeEvery;
  }
  std::string text;
  for (int begin = 0; begin < columns; begin += per_band) {
    const int end = std::min(columns, begin + per_band);
    if (begin > 0) text += "\n";
    text += TimeLine(name_width, unit, begin, end, cell_width);
    for (size_t rank = 0; rank < ranks; ++rank) {
      text += Line(absl::StrCat("rank ", rank), name_width, rows[rank], begin, end, cell_width);
    }
  }
  if (ranks < schedule.ranks.size()) absl::StrAppend(&text, AndMore(ranks, schedule.ranks.size(), "", "rank"), "\n");
  if (columns < all_columns) absl::StrAppend(&text, "The drawing ends at time ", columns * unit, ".\n");
  return text;
}

}  // namespace trainyard
