#include "client/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/column_width.h"
#include "client/output.h"
#include "common/escape.h"

namespace trainyard::client {
namespace {

constexpr int kColumnsDefault = 80;
constexpr char kClearLine[] = "\r\x1b[K";
constexpr char kEndColour[] = "\x1b[0m";

bool LocaleIsUtf8() {
  // As in POSIX, the first of these variables that is set and not empty decides.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = absl::AsciiStrToLower(value);
    return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
  }
  return false;
}

// https://no-color.org: set, and not empty.
bool ColourIsWanted() {
  const char* term = getenv("TERM");
  const char* no_colour = getenv("NO_COLOR");
  return term != nullptr && *term != '\0' && (no_colour == nullptr || *no_colour == '\0');
}

// The width of the terminal window of `stream`; 0: it has none, or the width is not known.
int WindowColumns(FILE* stream) {
  winsize size = {};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

const char* CodeOf(Style style) {
  switch (style) {
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarning:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[31m";
    case Style::kPlain:
      break;
  }
  return "";
}

// The colour code at the start of `text`; empty: none.
absl::string_view ColourAt(absl::string_view text) {
  if (!absl::StartsWith(text, "\x1b[")) return "";
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != absl::string_view::npos && text[end] == 'm' ? text.substr(0, end + 1) : "";
}

}  // namespace

TerminalTraits TraitsOf(FILE* stream) {
  TerminalTraits traits;
  const char* term = getenv("TERM");
  traits.is_terminal = isatty(fileno(stream)) != 0 && (term == nullptr || absl::string_view(term) != "dumb");
  traits.unicode = LocaleIsUtf8();
  traits.colour = traits.is_terminal && ColourIsWanted();
  if (traits.is_terminal) traits.columns = ColumnsOf(stream);
  return traits;
}

int ColumnsOf(FILE* stream) {
  constexpr int kColumnsMin = 20, kColumnsMax = 10'000;
  int columns = 0;
  const char* given = getenv("COLUMNS");
  if (given != nullptr && absl::SimpleAtoi(given, &columns) && columns >= kColumnsMin && columns <= kColumnsMax)
    return columns;
  columns = WindowColumns(stream);
  return columns > 0 ? columns : kColumnsDefault;
}

std::string Styled(absl::string_view text, Style style, bool colour) {
  if (!colour || style == Style::kPlain || text.empty()) return std::string(text);
  return absl::StrCat(CodeOf(style), text, kEndColour);
}

std::string CutToColumns(absl::string_view text, size_t columns) {
  std::string cut;
  bool coloured = false;
  for (size_t used = 0; !text.empty();) {
    if (absl::string_view code = ColourAt(text); !code.empty()) {
      coloured = code != kEndColour;
      absl::StrAppend(&cut, code);
      text.remove_prefix(code.size());
      continue;
    }
    const ShownCharacter character = FirstCharacter(text);
    used += character.columns;
    if (used > columns) break;
    absl::StrAppend(&cut, text.substr(0, character.bytes));
    text.remove_prefix(character.bytes);
  }
  if (coloured) absl::StrAppend(&cut, kEndColour);
  return cut;
}

int Terminal::columns() const {
  const int now = traits_.is_terminal && getenv("COLUMNS") == nullptr ? WindowColumns(stream_) : 0;
  return now > 0 ? now : traits_.columns;
}

void Terminal::Print(absl::string_view text, Style style) {
  absl::ConsumeSuffix(&text, "\n");
  const std::string safe = EscapeLines(text);
  WriteNow(stream_,
           absl::StrCat(status_.empty() ? "" : kClearLine, Styled(safe, style, traits_.colour), "\n", status_));
}

void Terminal::Status(absl::string_view line) {
  if (!traits_.is_terminal) return;
  // Some terminals wrap a line of their full width.
  std::string shown = CutToColumns(line, static_cast<size_t>(columns() > 1 ? columns() - 1 : 1));
  if (shown == status_) return;
  status_ = shown;
  WriteNow(stream_, absl::StrCat(kClearLine, status_));
}

void Terminal::Message(FILE* other, absl::string_view line) {
  const std::string status = status_;
  ClearStatus();
  WriteNow(other, absl::StrCat(EscapeLines(line), "\n"));
  Status(status);
}

void Terminal::ClearStatus() {
  if (status_.empty()) return;
  status_.clear();
  WriteNow(stream_, kClearLine);
}

}  // namespace trainyard::client
