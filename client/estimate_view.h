// The output of `trainctl estimate`: the memory of ZeRO's stages, as text and as JSON. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/zero_table.h"

namespace trainyard::client {

struct EstimateRequest {
  double parameters = 7e9;
  uint64_t ranks = 4;
  planner::Convention convention = planner::Convention::kTrainyard;
};

// The table in GB of 1e9 bytes (small amounts in MB of 1e6), how many times less each stage needs on growing numbers of
// ranks, and what 16 bits halve.
std::string EstimateText(const EstimateRequest& request);

// {"convention":"paper","parameters":7e9,"ranks":4,"stages":[{"stage":0,"parameters_bytes":...,"saving":1}],...}
nlohmann::ordered_json EstimateJson(const EstimateRequest& request);

// A number of parameters: 7e9, 7B, 350M. Possible errors: InvalidArgument: it is no number, or not from 1 to 1e15.
absl::StatusOr<double> ParseParameters(absl::string_view text);

}  // namespace trainyard::client
