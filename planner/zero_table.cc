#include "planner/zero_table.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard::planner {
namespace {

constexpr Convention kConventions[] = {Convention::kDocuments, Convention::kPaper, Convention::kTrainyard};

// `share`: the part of sharded state that a rank stores.
StateBytes StageBytes(const StateBytes& whole, int stage, double share) {
  return {.parameters = whole.parameters * (stage >= 3 ? share : 1),
          .gradients = whole.gradients * (stage >= 2 ? share : 1),
          .optimizer = whole.optimizer * (stage >= 1 ? share : 1)};
}

}  // namespace

absl::string_view ConventionName(Convention convention) {
  switch (convention) {
    case Convention::kDocuments:
      return "documents";
    case Convention::kPaper:
      return "paper";
    case Convention::kTrainyard:
      return "trainyard";
  }
  return "";
}

absl::StatusOr<Convention> ConventionOf(absl::string_view name) {
  std::vector<std::string> names;
  for (const Convention convention : kConventions) {
    if (ConventionName(convention) == name) return convention;
    names.emplace_back(ConventionName(convention));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown convention '", name, "'; expected one of ", absl::StrJoin(names, ", ")));
}

StateBytes BytesPerParameter(Convention convention) {
  switch (convention) {
    case Convention::kDocuments:
      return {.parameters = 2, .gradients = 2, .optimizer = 8};
    case Convention::kPaper:
      return {.parameters = 2, .gradients = 2, .optimizer = 12};
    case Convention::kTrainyard:
      return {.parameters = 2, .gradients = 4, .optimizer = 12};
  }
  return {};
}

StateBytes BytesPerParameterInFp32() { return {.parameters = 4, .gradients = 4, .optimizer = 8}; }

ZeroTable MakeZeroTable(Convention convention, double parameters, uint64_t ranks) {
  StateBytes whole = BytesPerParameter(convention);
  whole.parameters *= parameters;
  whole.gradients *= parameters;
  whole.optimizer *= parameters;
  ZeroTable table;
  for (int stage = 0; stage < kZeroStages; ++stage) {
    table[static_cast<size_t>(stage)] = StageBytes(whole, stage, 1 / static_cast<double>(ranks));
  }
  return table;
}

std::array<double, kZeroStages> ZeroSavings(Convention convention, uint64_t ranks) {
  const StateBytes whole = BytesPerParameter(convention);
  std::array<double, kZeroStages> savings = {};
  for (int stage = 0; stage < kZeroStages; ++stage) {
    const double left = StageBytes(whole, stage, ranks == 0 ? 0 : 1 / static_cast<double>(ranks)).total();
    savings[static_cast<size_t>(stage)] = left > 0 ? whole.total() / left : std::numeric_limits<double>::infinity();
  }
  return savings;
}

}  // namespace trainyard::planner
