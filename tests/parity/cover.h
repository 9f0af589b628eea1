// Small subsets of the cells of a test matrix. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace trainyard {

// The values of a cell's properties, in one order for all cells.
using CellValues = std::vector<int>;

// Returns the numbers of each cell's combinations: its single values or, with `pairs`, its pairs of values of two
// properties. Equal combinations have the same number, and numbers begin at 0.
inline std::vector<std::vector<size_t>> Combinations(const std::vector<CellValues>& cells, bool pairs) {
  std::map<std::array<int, 4>, size_t> numbers;
  std::vector<std::vector<size_t>> combinations(cells.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    const int properties = static_cast<int>(cells[c].size());
    for (int i = 0; i < properties; ++i) {
      for (int j = pairs ? i + 1 : i; j < (pairs ? properties : i + 1); ++j) {
        const auto [it, is_new] = numbers.try_emplace({i, cells[c][i], j, cells[c][j]}, numbers.size());
        combinations[c].push_back(it->second);
      }
    }
  }
  return combinations;
}

// A number of 64 bits that depends on `index` alone and looks random. A matrix that is a product of properties can
// derive further properties of a cell from these bits: their values then occur together with every value of the others,
// without more cells.
inline uint64_t MixedBits(uint64_t index) {
  uint64_t bits = (index + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Indexes of a greedy subset in which every combination that occurs in `cells` occurs. Deterministic.
inline std::vector<size_t> GreedyCover(const std::vector<CellValues>& cells, bool pairs) {
  const std::vector<std::vector<size_t>> combinations = Combinations(cells, pairs);
  size_t missing = 0;
  for (const std::vector<size_t>& each : combinations) {
    for (size_t number : each) missing = std::max(missing, number + 1);
  }
  std::vector<char> is_missing(missing, 1);
  std::vector<size_t> cover;
  while (missing > 0) {
    size_t best = 0, best_gain = 0;
    for (size_t c = 0; c < cells.size(); ++c) {
      size_t gain = 0;
      for (size_t number : combinations[c]) gain += static_cast<size_t>(is_missing[number]);
      if (gain > best_gain) {
        best = c;
        best_gain = gain;
      }
    }
    for (size_t number : combinations[best]) is_missing[number] = 0;
    missing -= best_gain;
    cover.push_back(best);
  }
  return cover;
}

}  // namespace trainyard
