// Logging of the daemons through spdlog, as text or as one JSON object a line, to standard error. A call formats its
// line and queues it (log_writer.h); no thread ever waits for whoever reads standard error. A message may hold text
// from outside: it is escaped here, where lines are made, so that no caller can forget it. Not for files that include
// torch (the wheel ships another fmt); those report through their link.
//
//   InitLogging({.program = "coordinator", .json = false, .level = "info"});
//   spdlog::info("job {}: {}", id, reason);
//
// At the end of the process, also by a fatal signal, what is queued is written for as long as that takes a moment.
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

// Call once, before any thread is started that logs. Tests call it again to have the log of another descriptor.
void InitLogging(const LoggingOptions& options);

// Waits until what was logged so far is written; false: not within a second, since nobody reads it.
bool FlushLogging();

// Since the start. Thread-safe.
uint64_t LogLinesDropped();

}  // namespace trainyard
