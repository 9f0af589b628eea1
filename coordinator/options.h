// The coordinator's settings: flags over the configuration file over the defaults that the schema holds. Every problem
// of both is told at once.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

struct CoordinatorOptions {
  std::string listen;  // host:port or unix:PATH
  std::string state;
  std::string metrics;            // empty: none
  bool metrics_may_move = false;  // nobody chose the port: a free one where it is taken
  bool allow_plaintext = false;
  bool allow_local_users = false;
  std::string token_file = {};  // empty: a new token at each start
  std::string tokens = {};      // folder for it; empty: the user's
  uint32_t lease_ms = 0;
  uint32_t finished_jobs = 0;
  bool log_json = false;
  std::string log_level;
  int lifeline_fd = -1;  // its end ends the coordinator
  int ready_fd = -1;     // told once the API is served
};

struct CommandLine {
  // Set: print this and exit with 0 (--help, --version, --print-lifecycle).
  std::string print;
  CoordinatorOptions options;
};

// Possible errors: InvalidArgument: every problem of the flags and of the file, one a line.
absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv);

}  // namespace trainyard
