// How the daemon starts the program of a job with `command`: program, environment (torchrun's variables), working
// folder; and what the program says about its failure. Pure, except that it looks for programs and reads one file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/rank_folder.h"

namespace trainyard::agent {

// The variable with the daemon's socket, to which the program of a rank may report its progress.
inline constexpr char kLinkVariable[] = "TRAINYARD_LINK";

// The name of the error file in the rank folder. Its path is in the variable TORCHELASTIC_ERROR_FILE.
inline constexpr char kErrorFile[] = "error.json";

struct CommandOptions {
  bool is_check = false;                   // starts the program of command.check, which is no rank
  std::string master;                      // MASTER_ADDR:MASTER_PORT
  std::string interface = {};              // the network interface with this host's data address; empty: not known
  std::vector<uint32_t> cpus = {};         // see LaunchRecord
  std::string error_file = {};             // path
  std::string link = {};                   // path of the daemon's socket
  std::string token = {};                  // of the rank, for the link
  uint64_t log_bytes = 0;                  // see LaunchRecord
  const char* const* inherited = nullptr;  // the environment of the daemon: NAME=value, ended by a null pointer
};

// The program gets the environment of the daemon except TRAINYARD_*, then the variables of its rank, then
// `command.env`, then the variables with which it can report to the daemon (TRAINYARD_*).
// Possible errors: InvalidArgument: the spec cannot be read. NotFound: the program is not in PATH.
absl::StatusOr<LaunchRecord> CommandLaunch(const v1::DesiredTrainer& desired, const CommandOptions& options);

// The message of an exception that torch.distributed.elastic's `record` has written ("RuntimeError: no data"), as one
// line; empty: there is none.
std::string ReadErrorFile(const std::string& path);

}  // namespace trainyard::agent
