// The daemon's configuration: command line and file, merged into one validated value. Flags override the file; all
// problems of both are reported together. Reads only its arguments, the file and, for defaults, the environment and the
// host's name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/logging.h"

namespace trainyard::agent {

struct Config {
  std::string coordinator;      // host:port, or unix:PATH
  std::string token_file = {};  // empty: found automatically (common/dial.h)
  uint32_t slots = 0;           // trainers that may run here; 0: the number of GPUs, or 1 if there is none
  std::string name;             // of this host in the cluster
  std::string state;            // absolute path of the state folder
  // The folder in /var/tmp that contains `state`. This user must own it, because all users share /var/tmp. Empty if
  // `state` is somewhere else.
  std::string own_root;
  uint64_t log_bytes_per_rank = 64 << 20;  // limit for the stored output of one trainer
  std::string metrics;                     // host:port of /metrics; empty: not served
  std::string health;                      // host:port of the gRPC health service; empty: not served
  // True if the user did not choose the port: the daemon then uses a free one if the default is in use.
  bool metrics_may_use_free_port = false;
  bool health_may_use_free_port = false;
  std::string snapshots;  // a folder in a file system in memory, such as /dev/shm; empty: none
  std::vector<std::pair<std::string, std::string>> labels;  // key and value of each label
  LoggingOptions logging;
  std::string programs;  // the daemon's own folder, which also contains trainyard-shim and trainyard-trainer

  // From the command line only.
  bool stop_trainers = false;  // on SIGTERM, stop the trainers too
  bool adopt_cluster = false;  // let the coordinator of another cluster use this host
  int lifeline_fd = -1;        // the read end of the lifeline (common/lifeline.h); -1: none
  int ready_fd = -1;           // where to report that trainers can be started; -1: nowhere

  // The text that --help, --version or --print-man prints; empty: the daemon must run.
  std::string text_to_print;
};

// Possible errors: InvalidArgument, with one problem per line.
absl::StatusOr<Config> ReadConfig(int argc, const char* const* argv);

struct StatePlace {
  std::string path;           // of the state folder
  std::string own_root = {};  // as in Config
};
// Returns `<the user's state folder>/trainyard/<coordinator>-<name>` (UserStateFolder), or a path in a folder of the
// user below /var/tmp if there is no state folder. The path depends on user, coordinator and name, so that two daemons
// do not use the same folder by accident.
StatePlace DefaultState(const std::string& coordinator, const std::string& name);

}  // namespace trainyard::agent
