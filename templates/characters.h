// Classes of characters as Python defines them. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::templates {

// Whether str.isspace is true for the character.
bool IsSpace(uint32_t code);
// Whether str.splitlines ends a line at the character.
bool IsLineEnd(uint32_t code);
// Whether repr shows the character as it is.
bool IsPrintable(uint32_t code);

// REQUIRES of the functions below: valid UTF-8.
size_t CountCharacters(absl::string_view text);
absl::string_view StripSpaceBefore(absl::string_view text);
absl::string_view StripSpaceAfter(absl::string_view text);
bool IsAscii(absl::string_view text);

}  // namespace trainyard::templates
