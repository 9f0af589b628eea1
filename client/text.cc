#include "client/text.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/column_width.h"
#include "common/escape.h"

namespace trainyard::client {
namespace {

bool StartsCharacter(char c) { return (c & 0xC0) != 0x80; }

// Length in bytes of the escape sequence at the start of `text` (ECMA-48).
size_t SequenceBytes(absl::string_view text) {
  if (text.size() < 2) return text.size();
  if (text[1] == '[') {
    const size_t end = text.find_first_not_of("0123456789:;<=>? !\"#$%&'()*+,-./", 2);
    return end == absl::string_view::npos ? text.size() : end + 1;
  }
  if (absl::string_view("]PX^_").find(text[1]) != absl::string_view::npos) {
    // A string for the terminal itself (its title, the clipboard), up to BEL or ESC \.
    const size_t end = text.find_first_of("\a\x1b", 2);
    if (end == absl::string_view::npos) return text.size();
    return std::min(end + (text[end] == '\a' ? 1 : 2), text.size());
  }
  return std::min(text.find_first_not_of(" !\"#$%&'()*+,-./", 1), text.size() - 1) + 1;
}

bool SetsColour(absl::string_view sequence) {
  return absl::ConsumePrefix(&sequence, "\x1b[") && absl::ConsumeSuffix(&sequence, "m") &&
         sequence.find_first_not_of("0123456789;:") == absl::string_view::npos;
}

constexpr size_t kGap = 2;
constexpr size_t kIndent = 4;
// Minimum width of wrapped text.
constexpr size_t kWrappedWidthMin = 24;

// The lines of a table row and the columns in each, in order.
struct Layout {
  struct Place {
    size_t column;
    size_t width;
  };
  std::vector<std::vector<Place>> lines = {{}};
};

Layout PlaceColumns(const std::vector<size_t>& widths, size_t columns) {
  Layout layout;
  size_t start = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    const bool last = i + 1 == widths.size();
    const size_t space = start < columns ? columns - start : 0;
    size_t width = widths[i];
    if (width > space) {
      // Start a new line, unless this is long text and the remaining space is wide enough to wrap it.
      const bool wraps = space >= kWrappedWidthMin && (last || width > columns - kIndent);
      if (!wraps && !layout.lines.back().empty()) {
        layout.lines.emplace_back();
        start = kIndent;
      }
      width = std::min(width, columns - start);
    }
    layout.lines.back().push_back({.column = i, .width = width});
    start += width + kGap;
  }
  return layout;
}

void AppendLine(std::string line, std::string* text) {
  absl::StripTrailingAsciiWhitespace(&line);
  absl::StrAppend(text, line, "\n");
}

// Appends one line of the layout, which becomes as many lines of text as its highest cell has.
void AppendPlaces(const std::vector<std::string>& row, const std::vector<Layout::Place>& places, size_t indent,
                  std::string* text) {
  std::vector<std::vector<std::string>> cells;
  size_t height = 0;
  for (const Layout::Place& place : places) {
    cells.push_back(WrapText(place.column < row.size() ? row[place.column] : "", place.width));
    height = std::max(height, cells.back().size());
  }
  for (size_t y = 0; y < height; ++y) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < places.size(); ++i) {
      const std::string cell = y < cells[i].size() ? cells[i][y] : "";
      absl::StrAppend(&line, Padded(cell, places[i].width), std::string(kGap, ' '));
    }
    AppendLine(std::move(line), text);
  }
}

}  // namespace

std::string Amount(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  int unit = 0;
  while (value >= 999.5 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f", value);
  return absl::StrFormat(value < 9.995 ? "%.2f%s" : value < 99.95 ? "%.1f%s" : "%.0f%s", value, kUnits[unit]);
}

std::string DurationText(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  if (seconds < 9.95) return absl::StrFormat("%.1f s", seconds);
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return absl::StrFormat("%d s", s);
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s % 3600 / 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s % 86400 / 3600);
}

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::vector<std::string> WrapText(absl::string_view text, size_t columns) {
  columns = std::max<size_t>(columns, 1);
  std::vector<std::string> lines;
  while (TextColumns(text) > columns) {
    // A character of two columns is not divided, even if the line has only one.
    size_t end = std::max(BytesWithin(text, columns), FirstCharacter(text).bytes);
    // The last blank at which the line can end; it may directly follow the line.
    const size_t blank = text.substr(0, end + 1).rfind(' ');
    if (blank != absl::string_view::npos && blank > 0) end = blank;
    lines.emplace_back(absl::StripTrailingAsciiWhitespace(text.substr(0, end)));
    text = absl::StripLeadingAsciiWhitespace(text.substr(end));
  }
  if (!text.empty() || lines.empty()) lines.emplace_back(text);
  return lines;
}

std::string Table(const std::vector<std::vector<std::string>>& rows, int columns) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max({widths[i], TextColumns(row[i]), size_t{1}});
  }
  const size_t limit =
      columns <= 0 ? std::numeric_limits<size_t>::max() / 2 : std::max(static_cast<size_t>(columns), kIndent + 1);
  const Layout layout = PlaceColumns(widths, limit);
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < layout.lines.size(); ++i) {
      const auto& places = layout.lines[i];
      const auto has_text = [&](const Layout::Place& place) {
        return place.column < row.size() && !row[place.column].empty();
      };
      if (i > 0 && std::none_of(places.begin(), places.end(), has_text)) continue;
      AppendPlaces(row, places, i == 0 ? 0 : kIndent, &text);
    }
  }
  return text;
}

std::string Printable(absl::string_view text, size_t bytes_max) {
  // Escaping never shortens text, so escape no more than `bytes_max` + 1 bytes, and do not split a character.
  size_t escaped_bytes = std::min(text.size(), bytes_max + 1);
  for (int i = 0; i < 3 && escaped_bytes < text.size() && escaped_bytes > 0 && !StartsCharacter(text[escaped_bytes]);
       ++i) {
    --escaped_bytes;
  }
  std::string printable = EscapeText(text.substr(0, escaped_bytes));
  if (printable.size() <= bytes_max) return printable;
  size_t end = bytes_max;
  while (end > 0 && !StartsCharacter(printable[end])) --end;
  printable.resize(end);
  return printable;
}

std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("-_./:@%+=,", c);
  });
  return plain ? text : absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string LogLineForTerminals(absl::string_view line) {
  std::string shown;
  bool coloured = false;
  absl::ConsumeSuffix(&line, "\r");
  while (!line.empty()) {
    const size_t plain = std::min(line.find_first_of("\x1b\t"), line.size());
    absl::StrAppend(&shown, EscapeText(line.substr(0, plain)));
    line.remove_prefix(plain);
    if (absl::ConsumePrefix(&line, "\t")) {
      shown += '\t';
    } else if (!line.empty()) {
      const absl::string_view sequence = line.substr(0, SequenceBytes(line));
      line.remove_prefix(sequence.size());
      if (!SetsColour(sequence)) continue;
      absl::StrAppend(&shown, sequence);
      coloured = true;
    }
  }
  if (coloured) absl::StrAppend(&shown, "\x1b[0m");
  return shown;
}

}  // namespace trainyard::client
