// A check of JSON text from outside before it is parsed. Pure.
#pragma once

#include "absl/strings/string_view.h"

namespace trainyard {

// Whether arrays and objects are nested more than `depth_max` deep. Parsing a document that is nested so deeply needs
// far more memory than its text.
bool JsonNestsDeeperThan(absl::string_view json, int depth_max);

}  // namespace trainyard
