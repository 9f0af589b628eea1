// The daemon's configuration: command line and file into one checked value. Flags win over the file; every problem of
// both is told at once. Reads no more of the outside than its arguments, the file and, for defaults, the host's name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/logging.h"

namespace trainyard::agent {

struct Config {
  std::string coordinator;      // host:port, or unix:PATH
  std::string token_file = {};  // empty: found by itself (common/dial.h)
  uint32_t slots = 0;           // 0: as many as there are GPUs, else 1
  std::string name;
  std::string state;  // absolute
  // A folder above `state` in one that all users share: it must be this user's alone. Empty: there is none.
  std::string own_root;
  uint64_t log_bytes_per_rank = 64 << 20;
  std::string metrics;  // host:port; empty: none
  std::string health;   // host:port; empty: none
  // Nobody chose the port: a free one where it is taken.
  bool metrics_may_move = false;
  bool health_may_move = false;
  std::string snapshots;  // folder of a file system in memory; empty: none
  std::vector<std::pair<std::string, std::string>> labels;
  LoggingOptions logging;
  std::string programs;  // folder of trainyard-shim and trainyard-trainer: where the daemon itself lies

  // From the command line alone.
  bool stop_trainers = false;
  bool adopt_cluster = false;
  int lifeline_fd = -1;
  int ready_fd = -1;

  // Set when there is nothing to run: --help and --version. What to print.
  std::string answer;
};

// Possible errors: InvalidArgument: every problem, one a line.
absl::StatusOr<Config> ReadConfig(int argc, const char* const* argv);

// `${XDG_STATE_HOME:-~/.local/state}/trainyard/<coordinator>-<name>`, without a home below /var/tmp: keyed by user,
// coordinator and name, so that daemons do not meet in one folder by chance.
struct StatePlace {
  std::string path;
  std::string own_root = {};  // as in Config
};
StatePlace DefaultState(const std::string& coordinator, const std::string& name);

}  // namespace trainyard::agent
