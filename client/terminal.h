// Text output: plain lines, and on a terminal also a status line at the bottom that is rewritten in place. Escapes
// text, so that text from outside cannot control the terminal. Not thread-safe; one thread writes.
#pragma once

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::client {

struct TerminalTraits {
  bool is_terminal = false;  // the status line can be rewritten
  bool unicode = false;      // the locale is UTF-8
  bool colour = false;
  int columns = 80;
};

// The traits of a stream, from isatty (and TERM not "dumb"), the locale's variables, NO_COLOR and the window's width.
TerminalTraits TraitsOf(FILE* stream);

// The width of the terminal `stream`: COLUMNS if it is a number from 20 to 10000, else the window's width, else 80.
int ColumnsOf(FILE* stream);

enum class Style { kPlain, kGood, kWarning, kBad };

// `text` in the colour of `style`; unchanged without `colour` or in plain style. REQUIRES: `text` is escaped.
std::string Styled(absl::string_view text, Style style, bool colour);

// The beginning of `text` that takes at most `columns` columns (column_width.h). Colour codes have no width, and are
// ended where the text is cut. Pure.
std::string CutToColumns(absl::string_view text, size_t columns);

class Terminal {
 public:
  Terminal(FILE* stream, const TerminalTraits& traits) : stream_(stream), traits_(traits) {}
  ~Terminal() { ClearStatus(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const TerminalTraits& traits() const { return traits_; }
  // The width now, because a window may have been resized since the construction.
  int columns() const;

  // Prints text above the status line. Adds a newline if it lacks one.
  void Print(absl::string_view text, Style style = Style::kPlain);
  // Replaces the status line; does nothing if the stream is not a terminal. `line` may contain colours, but no text
  // from outside.
  void Status(absl::string_view line);
  void ClearStatus();
  // Prints a line to another stream that may share the terminal; hides the status line meanwhile.
  void Message(FILE* other, absl::string_view line);

 private:
  FILE* stream_;
  const TerminalTraits traits_;
  std::string status_;
};

}  // namespace trainyard::client
