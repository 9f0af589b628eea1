#include "client/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard::client {
namespace {

// Sums and differences of larger losses may not be finite.
constexpr double kLossMax = 1e300;

using Points = std::vector<std::pair<uint64_t, double>>;

// A grid of cells with `dots_x` by `dots_y` dots each.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns), rows_(rows), unicode_(unicode), cells_(static_cast<size_t>(columns * rows)) {}

  int width() const { return columns_ * dots_x(); }
  int height() const { return rows_ * dots_y(); }

  void Dot(int x, int y) {
    // The bits of a braille cell by row: dots 1-3 and 4-6, then the later additions 7 and 8.
    constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    uint8_t& cell = cells_[static_cast<size_t>(y / dots_y() * columns_ + x / dots_x())];
    cell = unicode_ ? cell | kBits[y % 4][x % 2] : 1;
  }

  std::string Row(int row) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const uint8_t cell = cells_[static_cast<size_t>(row * columns_ + column)];
      if (!unicode_ || cell == 0) {
        text += cell == 0 ? ' ' : '*';
        continue;
      }
      // U+2800 + cell, in UTF-8.
      text += static_cast<char>(0xE2);
      text += static_cast<char>(0xA0 | (cell >> 6));
      text += static_cast<char>(0x80 | (cell & 0x3F));
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
  }

 private:
  int dots_x() const { return unicode_ ? 2 : 1; }
  int dots_y() const { return unicode_ ? 4 : 1; }

  const int columns_, rows_;
  const bool unicode_;
  std::vector<uint8_t> cells_;
};

// Mean loss of each column of dots; NaN if a column has no point.
std::vector<double> ColumnMeans(const Points& points, int width, uint64_t first, uint64_t last) {
  std::vector<double> sums(static_cast<size_t>(width)), counts(static_cast<size_t>(width));
  for (const auto& [step, loss] : points) {
    double share = static_cast<double>(step - first) / static_cast<double>(last - first);
    auto x = static_cast<size_t>(std::lround(share * (width - 1)));
    sums[x] += loss;
    counts[x] += 1;
  }
  for (size_t x = 0; x < sums.size(); ++x) {
    sums[x] = counts[x] > 0 ? sums[x] / counts[x] : std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

// Interpolates columns without points, so that a short run is drawn as a curve, too.
void FillGaps(std::vector<double>* means) {
  size_t previous = 0;
  for (size_t x = 1; x < means->size(); ++x) {
    if (std::isnan((*means)[x])) continue;
    for (size_t gap = previous + 1; gap < x; ++gap) {
      double share = static_cast<double>(gap - previous) / static_cast<double>(x - previous);
      (*means)[gap] = (*means)[previous] + share * ((*means)[x] - (*means)[previous]);
    }
    previous = x;
  }
}

void Draw(const std::vector<double>& means, double low, double high, Canvas* canvas) {
  int previous_y = -1;
  for (size_t x = 0; x < means.size(); ++x) {
    double share = high > low ? (high - means[x]) / (high - low) : 0.5;
    int y = std::clamp(static_cast<int>(std::lround(share * (canvas->height() - 1))), 0, canvas->height() - 1);
    // Fill steep pieces, so that the curve is connected.
    for (int fill = previous_y < 0 ? y : std::min(previous_y, y); fill <= std::max(previous_y, y); ++fill) {
      if (fill != previous_y || y == previous_y) canvas->Dot(static_cast<int>(x), fill);
    }
    previous_y = y;
  }
}

}  // namespace

std::string Plot(const Points& points, const PlotOptions& options) {
  Points finite;
  for (const auto& point : points) {
    // After a restart, steps occur again; only the first occurrence is drawn.
    if (!finite.empty() && point.first <= finite.back().first) continue;
    if (std::abs(point.second) < kLossMax) finite.push_back(point);
  }
  if (finite.size() < 2 || finite.front().first >= finite.back().first) return "";
  constexpr int kScale = 8;  // "  1.234 "
  const int columns = std::max(options.columns - kScale - 1, 8), rows = std::max(options.rows, 2);
  Canvas canvas(columns, rows, options.unicode);
  const uint64_t first = finite.front().first, last = finite.back().first;
  std::vector<double> means = ColumnMeans(finite, canvas.width(), first, last);
  FillGaps(&means);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (double mean : means) {
    low = std::min(low, mean);
    high = std::max(high, mean);
  }
  Draw(means, low, high, &canvas);

  const std::string bar = options.unicode ? "│" : "|", corner = options.unicode ? "└" : "+",
                    dash = options.unicode ? "─" : "-";
  std::string text;
  for (int row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row == rows - 1 || row == rows / 2;
    double value = high - (high - low) * row / (rows - 1);
    absl::StrAppend(&text, labelled ? absl::StrFormat("%*.4g ", kScale - 1, value) : std::string(kScale, ' '), bar,
                    canvas.Row(row), "\n");
  }
  absl::StrAppend(&text, std::string(kScale, ' '), corner);
  for (int column = 0; column < columns; ++column) text += dash;
  std::string from = absl::StrCat("step ", first), to = absl::StrCat(last);
  int gap = std::max(1, columns - static_cast<int>(from.size() + to.size()));
  absl::StrAppend(&text, "\n", std::string(kScale + 1, ' '), from, std::string(static_cast<size_t>(gap), ' '), to,
                  "\n");
  return text;
}

}  // namespace trainyard::client
