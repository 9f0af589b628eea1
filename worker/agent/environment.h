// The environment of a trainer. It contains only the variables that environment.cc names, those of NCCL, which describe
// the network of this host, and TRAINYARD_STACK_FILE (process_table.cc), so that a job runs identically regardless of
// the shell that started the daemon. Pure.
#pragma once

#include <string>
#include <vector>

#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

struct EnvironmentOptions {
  uint32_t threads = 1;
  bool owns_cores = false;  // each thread of this host's ranks has a core for itself
  std::string token;
  std::string snapshots = {};              // folder in memory for snapshots; empty: none
  const char* const* inherited = nullptr;  // the environment of the daemon: NAME=value, ended by a null pointer
};

// Returns NAME=value, each name once.
std::vector<std::string> TrainerEnvironment(const v1::DesiredTrainer& desired, const EnvironmentOptions& options);

}  // namespace trainyard::agent
