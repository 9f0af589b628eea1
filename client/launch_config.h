// The flags of Accelerate that `trainctl launch` accepts, and Accelerate's configuration files: together they become
// torchrun's flags and environment variables for the script.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/launch_flags.h"
#include "foreign/script_launch.h"

namespace trainyard::client {

struct AccelerateFlags {
  std::string config_file;  // empty: none
  foreign::ScriptLaunchFlags flags;
  uint32_t machine_rank = 0;
  uint32_t threads_per_process = 0;           // 0: not given
  std::vector<std::string> refused = {};      // flags that were given, each with the reason
  bool for_accelerate = false;                // config_file was given, or a flag that sets `flags`
  bool has_ranks = false, has_hosts = false;  // --nproc-per-node or --nnodes was given
};

// Adds the flags to a verb that already has torchrun's.
void AddAccelerateFlags(CLI::App& verb, const std::shared_ptr<AccelerateFlags>& options, LaunchFlags* launch);

// Reads the file, if one is given, and changes `launch`. Possible errors: NotFound: there is no such file;
// InvalidArgument: file or flags are wrong or not supported, with a line for each problem.
absl::Status ApplyAccelerateFlags(const AccelerateFlags& options, const std::string& working_directory,
                                  LaunchFlags* launch);

}  // namespace trainyard::client
