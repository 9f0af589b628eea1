// Small texts for people: amounts, durations, aligned tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard::client {

// 950, 12.3k, 4.56M.
std::string Amount(double value);
// 4.2 s, 1m02s, 3h05m, 2d04h.
std::string DurationText(absl::Duration duration);
// 12 B, 3.4 MiB.
std::string BytesText(uint64_t bytes);

// Columns as wide as their widest cell, two blanks between them; the first row is the head. No blanks at the ends of
// lines. Within `columns` (0: any number) every line fits, whatever the cells hold: free text at the end of a row goes
// on below itself, and columns for which there is no room stand on further lines of their row, indented, as in the
// head. REQUIRES: cells hold no ends of lines.
std::string Table(const std::vector<std::vector<std::string>>& rows, int columns = 0);

// `text` in lines of at most `columns` code points, parted at blanks where there are any. Never empty.
std::vector<std::string> WrapText(absl::string_view text, size_t columns);

// `text` on one line, with what a terminal would act on escaped (common/escape.h); cut where that is longer than
// `bytes_max`.
std::string Printable(absl::string_view text, size_t bytes_max);

// A line of a program's output for a terminal: colours stay and are ended, other escape sequences go, and what is left
// of control characters is escaped, except for tabs.
std::string LogLineForTerminals(absl::string_view line);

// As a shell takes it for one word: in quotes where it needs them.
std::string ShellWord(const std::string& text);

}  // namespace trainyard::client
