// What `trainctl parity` found, for people and as JSON. Pure.
#pragma once

#include <string>
#include <vector>

namespace trainyard::client {

struct ParityResult {
  std::string name;
  std::vector<double> losses;  // by step, from the first
};

// Largest relative difference of any step's loss from that of `reference`; infinity where a loss is missing or not
// finite.
double LargestDifference(const ParityResult& result, const ParityResult& reference);

// The largest over all results but the first, which is the reference, and the second, which is the noise floor.
double WorstDifference(const std::vector<ParityResult>& results);

// A table of losses, a row a step, then the largest differences. `columns`: see Table.
std::string ParityText(const std::vector<ParityResult>& results, int columns = 0);

// {"variants":[{"name":"one process","losses":[...],"largest_difference":0},...],"worst":2.1e-08}
std::string ParityJson(const std::vector<ParityResult>& results);

}  // namespace trainyard::client
