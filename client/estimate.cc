// trainctl estimate: prints the memory that ZeRO's stages need, from the number of parameters alone.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "client/commands.h"
#include "client/estimate_view.h"
#include "client/output.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct EstimateOptions {
  std::string parameters;
  uint64_t ranks = 4;
  std::string convention = "trainyard";
  bool json = false;
};

absl::Status Estimate(const EstimateOptions& options) {
  EstimateRequest request{.ranks = options.ranks};
  ASSIGN_OR_RETURN(request.parameters, ParseParameters(options.parameters));
  ASSIGN_OR_RETURN(request.convention, planner::ConventionOf(options.convention));
  if (options.json) {
    PrintJson(EstimateJson(request).dump());
  } else {
    Print(EstimateText(request));
  }
  return OutputStatus();
}

}  // namespace

void AddEstimate(CLI::App& app, const Globals&, Chosen* chosen) {
  auto options = std::make_shared<EstimateOptions>();
  CLI::App* verb = app.add_subcommand("estimate", "Print the memory that each stage of ZeRO needs for a model");
  verb->add_option("--parameters", options->parameters, "Parameters of the model: 7e9, 7B, 350M")->required();
  verb->add_option("--ranks", options->ranks, "Ranks that share the state")
      ->check(CLI::Range(uint64_t{1}, uint64_t{65536}))
      ->capture_default_str();
  verb->add_option("--convention", options->convention,
                   "What is counted for each parameter: documents (2 + 2 + 8 bytes), paper (2 + 2 + 12, with fp32 "
                   "weights of the optimizer) or trainyard (2 + 4 + 12, what this program stores)")
      ->capture_default_str();
  AddJson(*verb, &options->json, "Print the table as one JSON object");
  verb->footer(
      "Counts parameters, gradients and optimizer state in 16-bit training, in GB of 1e9 bytes; no activations. Also\n"
      "prints how many times less memory each stage needs as the number of ranks grows, and what 16 bits halve.\n"
      "`trainctl validate --memory` plans a whole job, and `trainctl plan` chooses a layout that fits.\n\n"
      "Examples:\n"
      "  trainctl estimate --parameters 7B --ranks 4 --convention documents\n"
      "  trainctl estimate --parameters 70e9 --ranks 64");
  verb->callback(
      [options, chosen] { *chosen = [options] { return ReportStatus(Estimate(*options), options->json); }; });
}

}  // namespace trainyard::client
