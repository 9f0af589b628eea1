// Makes text from outside (names, reasons, paths, messages of libraries) safe for logs of text lines and for terminals.
// Characters that a terminal would execute, or that would begin another line, become visible. Pure.
//
//   EscapeText("a\x1b[2Jb\n")  ->  "a\x1b[2Jb\x0a", with both escapes written as four characters
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// `text` with each control character (C0, DEL, C1, and Unicode's line ends and direction changes) and each byte that is
// not part of valid UTF-8 written as \xNN. The result is valid UTF-8 on one line.
std::string EscapeText(absl::string_view text);

// The same, but keeps line ends: for messages of several lines on a terminal.
std::string EscapeLines(absl::string_view text);

}  // namespace trainyard
