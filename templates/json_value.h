// JSON as a value of templates. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "templates/value.h"

namespace trainyard::templates {

// Objects keep the order of their keys. Possible errors: InvalidArgument: a number is too large to be exact.
// REQUIRES: `json` is nested at most kValueDepthMax deep (budget.h).
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);

}  // namespace trainyard::templates
