// Finds what was meant by a name with a typing error. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard {

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours) from `word`, if it is close enough
// to be a likely typing error; otherwise empty.
std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace trainyard
