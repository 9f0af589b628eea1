// Text from people and programs: whether it is UTF-8 without characters that terminals, logs and files take for
// commands. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

struct Character {
  uint32_t code = 0;
  size_t length = 0;  // in bytes; 0: what stands there is not UTF-8
};

// The first character of `text`. REQUIRES: `text` is not empty.
Character DecodeUtf8(absl::string_view text);

// False for what is no character: beyond Unicode, or half of a surrogate pair.
bool AppendUtf8(uint32_t code, std::string* text);

// C0 and C1 controls (escape codes, NUL, ends of lines, tabs), and Unicode's separators of lines and paragraphs.
bool IsControl(uint32_t code);

// Why `text` is not a line of plain text: "is not UTF-8 text", "holds the control character 27"; empty: it is.
std::string WhyNotPlainText(absl::string_view text);

}  // namespace trainyard
