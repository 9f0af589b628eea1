// Logging of the daemons through spdlog to standard error or to a file, as text or as one JSON object per line. A call
// formats its line and queues it (log_writer.h), so no thread ever waits for the reader of standard error. If standard
// error is the journal of systemd, each line begins with its priority ("<4>"), and lines of text contain no time,
// because the journal adds it. A message may contain text from outside; all lines are escaped here, so callers need not
// do so. Files that include torch cannot use this header, because the wheel of torch ships another version of fmt; they
// report through the link to the daemon.
//
//   InitLogging({.program = "coordinator", .json = false, .level = "info"});
//   spdlog::info("job {}: {}", id, reason);
//
// When the process ends, also by a fatal signal, queued lines are written if that takes only a moment.
#pragma once

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rotated_log.h"

namespace trainyard {

struct LoggingOptions {
  std::string program;
  bool json = false;
  std::string level = "info";  // debug, info, warning, error
  int fd = STDERR_FILENO;
  RotatedLog::Options file = {};  // with a path: lines are written there instead of to `fd`
};

// Call once, before starting any thread that logs. Tests call it again to log to another descriptor. REQUIRES: `file`
// has no path.
void InitLogging(const LoggingOptions& options);
// The same, with a file. Possible errors: those of RotatedLog::Open.
absl::Status OpenLog(const LoggingOptions& options);

// Opens the file again by its path, if lines are written to one, and changes the level. A daemon calls this on SIGHUP.
// Logs the new level, or why the configuration cannot be read. Thread-safe.
void ReloadLog(const absl::StatusOr<std::string>& level);

// Waits until all lines logged so far are written. Returns false after a second, if nothing reads standard error.
bool FlushLogging();

// The number of lines dropped since the start. Thread-safe.
uint64_t LogLinesDropped();

}  // namespace trainyard
