// Values of one floating type as another, rounded to the nearest, ties to even, as IEEE 754 and torch do. Pure; needs
// no torch.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// Whether it is one of F64, F32, F16, BF16.
bool IsFloating(absl::string_view dtype);

// "F32" of "fp32" and so on, the words of train.precision; empty for any other word.
std::string DtypeOfWord(absl::string_view word);

// REQUIRES: both types are floating, `bytes` are whole values.
std::string ConvertValues(absl::string_view bytes, absl::string_view from, absl::string_view to);

}  // namespace trainyard
