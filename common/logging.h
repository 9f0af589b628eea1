// Logging of the daemons through spdlog to standard error, as text or as one JSON object per line. A call formats its
// line and queues it (log_writer.h), so no thread ever waits for the reader of standard error. A message may contain
// text from outside; all lines are escaped here, so callers need not do so. Files that include torch cannot use this
// header, because the wheel of torch ships another version of fmt; they report through the link to the daemon.
//
//   InitLogging({.program = "coordinator", .json = false, .level = "info"});
//   spdlog::info("job {}: {}", id, reason);
//
// When the process ends, also by a fatal signal, queued lines are written if that takes only a moment.
#pragma once

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace trainyard {

struct LoggingOptions {
  std::string program;
  bool json = false;
  std::string level = "info";  // debug, info, warning, error
  int fd = STDERR_FILENO;
};

// Call once, before starting any thread that logs. Tests call it again to log to another descriptor.
void InitLogging(const LoggingOptions& options);

// Waits until all lines logged so far are written. Returns false after a second, if nothing reads standard error.
bool FlushLogging();

// The number of lines dropped since the start. Thread-safe.
uint64_t LogLinesDropped();

}  // namespace trainyard
