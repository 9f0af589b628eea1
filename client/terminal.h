// Where trainctl writes for people: plain lines anywhere, and on a terminal one line at the bottom that is written
// anew. Text is escaped on its way, so that nothing foreign acts on the terminal. Not thread-safe; one thread writes.
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

// Of a stream: isatty (and TERM not "dumb"), the locale's variables, NO_COLOR, the window's width.
TerminalTraits TraitsOf(FILE* stream);

// Columns of the terminal that `stream` is: COLUMNS where that is a number, else the window's, else 80.
int ColumnsOf(FILE* stream);

enum class Style { kPlain, kGood, kWarning, kBad };

// `text` between the codes of a colour; without `colour`, or in plain style, as it is. REQUIRES: `text` is escaped.
std::string Styled(absl::string_view text, Style style, bool colour);

// The first `columns` code points of `text`; colours take none, and are ended where they are cut. Pure.
std::string CutToColumns(absl::string_view text, size_t columns);

class Terminal {
 public:
  Terminal(FILE* stream, const TerminalTraits& traits) : stream_(stream), traits_(traits) {}
  ~Terminal() { ClearStatus(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const TerminalTraits& traits() const { return traits_; }
  // Now: a window may change its size.
  int columns() const;

  // Text that stays, above the status line. A line's end is added where it lacks one.
  void Print(absl::string_view text, Style style = Style::kPlain);
  // Replaces the status line; on no terminal it does nothing. `line` may hold colours, and nothing foreign.
  void Status(absl::string_view line);
  void ClearStatus();
  // A line to another stream that may share the terminal; the status line is out of its way meanwhile.
  void Aside(FILE* other, absl::string_view line);

 private:
  FILE* stream_;
  const TerminalTraits traits_;
  std::string status_;
};

}  // namespace trainyard::client
