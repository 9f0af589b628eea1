// The filters and tests of names.h. Not thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "templates/budget.h"
#include "templates/operations.h"
#include "templates/value.h"

namespace trainyard::templates {

// Possible errors of both: InvalidArgument; ResourceExhausted.
absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value, const CallArguments& arguments,
                                  Budget& budget);
absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value, const CallArguments& arguments,
                               Budget& budget);

}  // namespace trainyard::templates
