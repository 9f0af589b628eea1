// A loss curve as a few lines of text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainyard::client {

struct PlotOptions {
  int columns = 64;  // of the whole plot, including the scale
  int rows = 10;
  bool unicode = true;  // braille dots; otherwise one '*' per cell
};

// The curve with its scale on the left and its steps below; empty for fewer than two finite points. Each column shows
// the mean of its points, so that noise does not fill the plot.
std::string Plot(const std::vector<std::pair<uint64_t, double>>& points, const PlotOptions& options);

}  // namespace trainyard::client
