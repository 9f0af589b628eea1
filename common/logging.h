// Logging of the daemons and tools through spdlog, as text or as one JSON object a line, to standard error.
// Not for files that include torch (the wheel ships another fmt); those report through their link.
//
//   InitLogging({.program = "coordinator", .json = false, .level = "info"});
//   spdlog::info("job {}: {}", id, reason);
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace trainyard {

struct LoggingOptions {
  std::string program;
  bool json = false;
  std::string level = "info";  // debug, info, warning, error
};

// Call once, before any thread is started.
void InitLogging(const LoggingOptions& options);

}  // namespace trainyard
