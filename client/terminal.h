// Where trainctl writes for people: plain lines anywhere, and on a terminal one line at the bottom that is written
// anew. Not thread-safe; one thread writes.
#pragma once

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::client {

struct TerminalTraits {
  bool is_terminal = false;  // the status line can be rewritten
  bool unicode = false;      // the locale is UTF-8
  int columns = 80;
};

// Of a stream: isatty (and TERM not "dumb"), the locale's variables, the window's width.
TerminalTraits TraitsOf(FILE* stream);

class Terminal {
 public:
  Terminal(FILE* stream, const TerminalTraits& traits) : stream_(stream), traits_(traits) {}
  ~Terminal() { ClearStatus(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const TerminalTraits& traits() const { return traits_; }

  // Text that stays, above the status line. A line's end is added where it lacks one.
  void Print(absl::string_view text);
  // Replaces the status line; on no terminal it does nothing.
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
