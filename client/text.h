// Small texts for people: amounts, durations, aligned tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard::client {

// 950, 12.3k, 4.56M.
std::string Amount(double value);
// 4.2 s, 1m02s, 3h05m, 2d04h.
std::string DurationText(absl::Duration duration);
// 12 B, 3.4 MiB.
std::string BytesText(uint64_t bytes);

// Columns as wide as their widest cell, two blanks between them; the first row is the head. No blanks at the ends of
// lines.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// The text less what a terminal would act on: control characters become '?', tabs a blank. Bytes beyond `bytes_max` are
// cut.
std::string Printable(const std::string& text, size_t bytes_max);

// As a shell takes it for one word: in quotes where it needs them.
std::string ShellWord(const std::string& text);

}  // namespace trainyard::client
