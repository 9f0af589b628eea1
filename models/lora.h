// Low-rank adapters (arXiv:2106.09685): the matrix W of a projection becomes W + (alpha / rank) B A, where A and B are
// parameters of their own. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard {

struct LoraSettings {
  int64_t rank = 0;  // 0: the model has no adapters
  double alpha = 0;
  double dropout = 0;                // the probability that an input of A is set to 0
  std::vector<std::string> targets;  // ends of names of projections, or globs of whole names
  bool operator==(const LoraSettings&) const = default;
};

}  // namespace trainyard
