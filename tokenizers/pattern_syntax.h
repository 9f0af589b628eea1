// Translates the patterns of tokenizer.json files to PCRE2's syntax. Pure and thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Possible errors: InvalidArgument: the pattern has a part whose meaning differs in PCRE2.
absl::StatusOr<std::string> TranslatePattern(absl::string_view expression);

}  // namespace trainyard
