// Formats the results of `trainctl parity` as text and as JSON. Pure.
#pragma once

#include <string>
#include <vector>

namespace trainyard::client {

struct ParityResult {
  std::string name;
  std::vector<double> losses;  // by step, from the first
};

// The largest relative difference of any step's loss from that of `reference`; infinity if a loss is missing or not
// finite.
double LargestDifference(const ParityResult& result, const ParityResult& reference);

// The largest difference of all results except the first (the reference) and the second (the noise floor: the same sums
// in another order).
double WorstDifference(const std::vector<ParityResult>& results);

// A table of losses with one row per step, then the largest differences. `columns`: see Table.
std::string ParityText(const std::vector<ParityResult>& results, int columns = 0);

// {"variants":[{"name":"one process","losses":[...],"largest_difference":0},...],"worst":2.1e-08}
std::string ParityJson(const std::vector<ParityResult>& results);

}  // namespace trainyard::client
