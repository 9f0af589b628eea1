// Formats amounts, durations and aligned tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard::client {

// 950, 12.3k, 4.56M.
std::string Amount(double value);
// 4.2 s, 1m02s, 3h05m, 2d04h. A negative duration, such as an age by a clock that is behind another one, is 0.0 s.
std::string DurationText(absl::Duration duration);
// 12 B, 3.4 MiB.
std::string BytesText(uint64_t bytes);

// Columns are as wide as their widest cell, with two blanks between them and no trailing blanks; the first row is the
// header. With `columns` (0: no limit) every line fits into that width whatever the cells contain: long text at the end
// of a row is wrapped, and columns that do not fit move to further, indented lines of their row and of the header.
// REQUIRES: cells contain no newlines.
std::string Table(const std::vector<std::vector<std::string>>& rows, int columns = 0);

// Splits `text` into lines of at most `columns` columns (column_width.h), at blanks where possible. Never empty.
std::vector<std::string> WrapText(absl::string_view text, size_t columns);

// `text` on one line with control characters escaped (common/escape.h), cut to at most `bytes_max`.
std::string Printable(absl::string_view text, size_t bytes_max);

// A line of program output for a terminal: keeps and ends colours, drops other escape sequences, and escapes remaining
// control characters except tabs.
std::string LogLineForTerminals(absl::string_view line);

// Quotes `text` for a shell if necessary.
std::string ShellWord(const std::string& text);

}  // namespace trainyard::client
