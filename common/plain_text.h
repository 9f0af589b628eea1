// Text from users and programs: UTF-8, and plain text, which contains no characters that terminals, logs or files
// interpret. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

struct Character {
  uint32_t code = 0;
  size_t length = 0;  // in bytes; 0: the text does not begin with a valid UTF-8 sequence
};

// The first character of `text`. REQUIRES: `text` is not empty.
Character DecodeUtf8(absl::string_view text);

// Returns false if `code` is not a character: beyond Unicode, or half of a surrogate pair.
bool AppendUtf8(uint32_t code, std::string* text);

// U+FFFD, which stands for bytes that are not valid UTF-8.
inline constexpr absl::string_view kReplacementCharacter = "\xef\xbf\xbd";

// The beginning of `text`, at most `bytes_max` bytes of whole characters, with each byte that is not part of valid
// UTF-8 replaced. Strings in protobuf messages must be valid.
std::string ValidUtf8(absl::string_view text, size_t bytes_max, absl::string_view replacement = kReplacementCharacter);

// C0 and C1 controls (escape codes, NUL, line ends, tabs), and Unicode's line and paragraph separators.
bool IsControl(uint32_t code);

// Why `text` is not one line of plain text: "is not UTF-8 text", "holds the control character 27". Empty if it is.
std::string WhyNotPlainText(absl::string_view text);

}  // namespace trainyard
