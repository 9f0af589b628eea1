// Reads lines that a person types at the terminal.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::client {

// Reads standard input line by line. While an object exists, SIGINT, SIGTERM and SIGHUP end the call of Read and not
// this process; afterwards they end the process again. Not thread-safe; REQUIRES: the process has one thread.
class LineInput {
 public:
  LineInput();
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;

  // Writes `prompt` to standard error, and returns the next line without its end. Possible errors: OutOfRange: the
  // input has ended; Cancelled: a signal arrived; InvalidArgument: the line is too long or has control characters,
  // such as those of arrow keys.
  absl::StatusOr<std::string> Read(absl::string_view prompt);

 private:
  int signals_;         // a descriptor
  std::string buffer_;  // what was read after the last line
};

}  // namespace trainyard::client
