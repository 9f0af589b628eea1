// Text from outside (names, reasons, paths, what libraries say) on its way to people: into a log of text lines or onto
// a terminal. What a terminal could take for an order, or a reader of lines for another line, becomes visible. Pure.
//
//   EscapeText("a\x1b[2Jb\n")  ->  "a\x1b[2Jb\x0a", the two escapes spelled out in four characters each
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// `text` with each control character (C0, DEL, C1, Unicode's ends of lines and changes of direction) and each byte that
// is not part of valid UTF-8 as \xNN. The result is valid UTF-8 on one line.
std::string EscapeText(absl::string_view text);

// The same, but lines stay lines: for messages of several lines that go to a terminal.
std::string EscapeLines(absl::string_view text);

}  // namespace trainyard
