// A loss curve as a few lines of text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainyard::client {

struct PlotOptions {
  int columns = 64;  // of the whole plot, scale included
  int rows = 10;
  bool unicode = true;  // braille dots; else one '*' a cell
};

// The curve with its scale at the left and its steps below; empty for fewer than two finite points. A column shows the
// mean of its points, so that noise does not fill the plot.
std::string Plot(const std::vector<std::pair<uint64_t, double>>& points, const PlotOptions& options);

}  // namespace trainyard::client
