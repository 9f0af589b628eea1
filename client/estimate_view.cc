#include "client/estimate_view.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text.h"
#include "common/plural.h"

namespace trainyard::client {
namespace {

using planner::StateBytes;

constexpr const char* kStageNames[] = {"No ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
constexpr uint64_t kGrowingRanks[] = {4, 8, 64, 1024};

// "3.5 GB", "13.67 MB": four digits, so that stages differ.
std::string GigabyteText(double bytes) {
  return bytes < 1e9 ? absl::StrFormat("%.4g MB", bytes / 1e6) : absl::StrFormat("%.4g GB", bytes / 1e9);
}

std::string SavingText(double saving) {
  if (std::isinf(saving)) return "N x";
  return saving < 100 ? absl::StrFormat("%.3g x", saving) : absl::StrFormat("%.0f x", saving);
}

// "2 + 4 + 12 = 18".
std::string BytesSum(const StateBytes& bytes) {
  return absl::StrFormat("%g + %g + %g = %g", bytes.parameters, bytes.gradients, bytes.optimizer, bytes.total());
}

std::string StagesTable(const EstimateRequest& request) {
  const planner::ZeroTable table = planner::MakeZeroTable(request.convention, request.parameters, request.ranks);
  std::vector<std::string> header = {"COMPONENT"}, parameters = {"parameters"}, gradients = {"gradients"},
                           optimizer = {"optimizer"}, total = {"total per rank"};
  for (size_t stage = 0; stage < table.size(); ++stage) {
    header.push_back(kStageNames[stage]);
    parameters.push_back(GigabyteText(table[stage].parameters));
    gradients.push_back(GigabyteText(table[stage].gradients));
    optimizer.push_back(GigabyteText(table[stage].optimizer));
    total.push_back(GigabyteText(table[stage].total()));
  }
  return Table({header, parameters, gradients, optimizer, total});
}

std::string SavingsTable(const EstimateRequest& request) {
  std::vector<std::vector<std::string>> rows = {{"RANKS", kStageNames[1], kStageNames[2], kStageNames[3]}};
  const auto add = [&](const std::string& name, uint64_t ranks) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(name);
    const auto savings = planner::ZeroSavings(request.convention, ranks);
    for (size_t stage = 1; stage < savings.size(); ++stage) row.push_back(SavingText(savings[stage]));
  };
  add(absl::StrCat(request.ranks, " (these)"), request.ranks);
  for (const uint64_t ranks : kGrowingRanks) {
    if (ranks != request.ranks) add(absl::StrCat(ranks), ranks);
  }
  add("N, very many", 0);
  return Table(rows);
}

// What 16-bit types save in this program, whatever the convention of the table is.
std::string HalfPrecisionText() {
  const StateBytes half = planner::BytesPerParameter(planner::Convention::kTrainyard);
  const StateBytes full = planner::BytesPerParameterInFp32();
  const auto row = [](const char* name, double in_full, double in_half, const char* what) {
    return std::vector<std::string>{name, absl::StrFormat("%g", in_full), absl::StrFormat("%g", in_half), what};
  };
  return absl::StrCat(
      "What bf16 and fp16 halve in this program, in bytes for each parameter or element:\n",
      Table({{"", "FP32", "16 BITS", ""},
             row("parameters", full.parameters, half.parameters, "halved, also in communication"),
             row("gradients", full.gradients, half.gradients, "not halved: they are added up in fp32"),
             row("optimizer", full.optimizer, half.optimizer, "not halved: the weights that it updates stay in fp32"),
             row("state", full.total(), half.total(), "not halved"),
             row("activations", 4, 2, "halved; on long sequences they are most of the memory")}));
}

}  // namespace

std::string EstimateText(const EstimateRequest& request) {
  return absl::StrCat(
      Amount(request.parameters), " parameters on ", Plural(request.ranks, "rank"), ", convention ",
      planner::ConventionName(request.convention), ": ", BytesSum(planner::BytesPerParameter(request.convention)),
      " bytes for each parameter (parameters + gradients + optimizer)\n\n", StagesTable(request),
      "\nHow many times less memory than without ZeRO:\n", SavingsTable(request), "\n", HalfPrecisionText(),
      "\nActivations are not counted; `trainctl validate --memory` plans them for a job.\n");
}

nlohmann::ordered_json EstimateJson(const EstimateRequest& request) {
  const planner::ZeroTable table = planner::MakeZeroTable(request.convention, request.parameters, request.ranks);
  const auto savings = planner::ZeroSavings(request.convention, request.ranks);
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (size_t stage = 0; stage < table.size(); ++stage) {
    stages.push_back({{"stage", stage},
                      {"parameters_bytes", table[stage].parameters},
                      {"gradients_bytes", table[stage].gradients},
                      {"optimizer_bytes", table[stage].optimizer},
                      {"total_bytes", table[stage].total()},
                      {"saving", savings[stage]}});
  }
  return {{"convention", std::string(planner::ConventionName(request.convention))},
          {"parameters", request.parameters},
          {"ranks", request.ranks},
          {"bytes_per_parameter", planner::BytesPerParameter(request.convention).total()},
          {"bytes_per_parameter_fp32", planner::BytesPerParameterInFp32().total()},
          {"stages", stages}};
}

absl::StatusOr<double> ParseParameters(absl::string_view text) {
  absl::string_view digits = text;
  double unit = 1;
  if (!digits.empty()) {
    const char last = absl::ascii_toupper(static_cast<unsigned char>(digits.back()));
    unit = last == 'K' ? 1e3 : last == 'M' ? 1e6 : last == 'B' || last == 'G' ? 1e9 : last == 'T' ? 1e12 : 1;
    if (unit > 1) digits.remove_suffix(1);
  }
  double number = 0;
  // SimpleAtod also reads "inf" and "nan", which are not in the range.
  if (!absl::SimpleAtod(digits, &number) || !(number * unit >= 1) || !(number * unit <= 1e15)) {
    return absl::InvalidArgumentError(absl::StrCat("--parameters is '", text.substr(0, 40),
                                                   "'; expected a number from 1 to 1e15, such as 7e9, 7B or 350M"));
  }
  return number * unit;
}

}  // namespace trainyard::client
