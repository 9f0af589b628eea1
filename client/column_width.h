// How many columns of a terminal a text takes: two for each wide character (Chinese, Japanese, Korean, most emoji),
// none for each mark that is drawn over the character before it, and one for each other character. The C library's
// wcwidth counts in the same way in a UTF-8 locale, but the locale of a user has no effect here. Text that is not UTF-8
// takes a column for each byte. Pure. REQUIRES: the text contains no control characters (common/escape.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::client {

struct ShownCharacter {
  size_t bytes = 0;
  size_t columns = 0;
};

// REQUIRES: `text` is not empty.
ShownCharacter FirstCharacter(absl::string_view text);

size_t TextColumns(absl::string_view text);

// The number of bytes of the longest beginning of `text` that takes at most `columns` columns.
size_t BytesWithin(absl::string_view text, size_t columns);

// `text` with blanks behind it, so that it takes at least `columns` columns.
std::string Padded(absl::string_view text, size_t columns);

}  // namespace trainyard::client
