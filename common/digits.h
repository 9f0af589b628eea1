// Numbers in text protocols such as HTTP: digits only, neither a sign nor a space. Header-only. Pure.
#pragma once

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Returns whether the text is such a number and fits into `number`.
template <typename Integer>
bool ParseDigits(absl::string_view text, Integer* number) {
  return !text.empty() && absl::c_all_of(text, [](unsigned char c) { return absl::ascii_isdigit(c); }) &&
         absl::SimpleAtoi(text, number);
}

}  // namespace trainyard
