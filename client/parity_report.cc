#include "client/parity_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

constexpr size_t kFirstCompared = 2;  // after the reference and the noise floor

}  // namespace

double LargestDifference(const ParityResult& result, const ParityResult& reference) {
  if (result.losses.size() != reference.losses.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < result.losses.size(); ++i) {
    const double difference =
        std::abs(result.losses[i] - reference.losses[i]) / std::max(std::abs(reference.losses[i]), 1e-300);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

double WorstDifference(const std::vector<ParityResult>& results) {
  double worst = 0;
  for (size_t i = kFirstCompared; i < results.size(); ++i) {
    worst = std::max(worst, LargestDifference(results[i], results[0]));
  }
  return worst;
}

std::string ParityText(const std::vector<ParityResult>& results, int columns) {
  std::vector<std::vector<std::string>> rows(1, {"step"});
  for (const ParityResult& result : results) rows[0].push_back(result.name);
  for (size_t step = 0; step < results[0].losses.size(); ++step) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(step + 1));
    for (const ParityResult& result : results) {
      row.push_back(step < result.losses.size() ? absl::StrFormat("%.9f", result.losses[step]) : "-");
    }
  }
  std::string text = Table(rows, columns);
  absl::StrAppend(&text, "\nlargest relative difference from ", results[0].name, ":\n");
  for (size_t i = 1; i < results.size(); ++i) {
    absl::StrAppendFormat(&text, "  %-12s %.1e%s\n", results[i].name, LargestDifference(results[i], results[0]),
                          i < kFirstCompared ? "  (the noise floor: the same sums in another order)" : "");
  }
  return text;
}

std::string ParityJson(const std::vector<ParityResult>& results) {
  nlohmann::ordered_json variants = nlohmann::ordered_json::array();
  for (const ParityResult& result : results) {
    const double difference = LargestDifference(result, results[0]);
    nlohmann::ordered_json variant = {{"name", result.name}, {"losses", result.losses}};
    variant["largest_difference"] = std::isfinite(difference) ? nlohmann::ordered_json(difference) : nullptr;
    variants.push_back(std::move(variant));
  }
  const double worst = WorstDifference(results);
  nlohmann::ordered_json all = {{"variants", std::move(variants)}};
  all["worst"] = std::isfinite(worst) ? nlohmann::ordered_json(worst) : nullptr;
  return all.dump();
}

}  // namespace trainyard::client
