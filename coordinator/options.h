// The coordinator's settings: flags override the configuration file, which overrides the schema's defaults. All
// problems of the file are reported together; if it has none, all problems of the flags are.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/logging.h"
#include "coordinator/policy/queue_rules.h"

namespace trainyard {

struct CoordinatorOptions {
  std::string listen;                      // host:port or unix:PATH
  std::string state;                       // folder of the store
  std::string metrics;                     // host:port of /metrics; empty: it is not served
  bool metrics_may_use_free_port = false;  // the port was not chosen by the user: if it is in use, a free one is used
  bool page = true;                        // serve the status page and the API in JSON on the port of /metrics
  bool webhooks = true;                    // accept jobs with on_end.webhook
  bool allow_plaintext = false;
  bool allow_local_users = false;
  std::string token_file = {};         // empty: on loopback a new token at each start, else none
  std::string viewer_token_file = {};  // empty: there are no viewers
  std::string tokens = {};             // folder for the new token; empty: the user's token folder
  uint32_t lease_ms = 0;
  uint32_t finished_jobs = 0;
  QueueRules queue = {};
  LoggingOptions logging;
  int lifeline_fd = -1;  // the coordinator exits when the other end closes, unless it is released (common/lifeline.h)
  int ready_fd = -1;     // receives the addresses once the API is served
};

struct CommandLine {
  // Not empty: print this and exit with 0 (--help, --version, --print-lifecycle, --print-events, --print-man).
  std::string print;
  CoordinatorOptions options;
};

// Possible errors: InvalidArgument, with all problems of the file or, if it has none, of the flags, one per line. Those
// of ReadYamlFile if the file cannot be read.
absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv);

}  // namespace trainyard
