// The environment a trainer is started with: made of what is named here and nothing else, so that a job runs the same
// whatever shell the daemon was started from. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

struct EnvironmentOptions {
  uint32_t threads = 1;
  std::string token;
  std::string snapshots = {};  // folder in memory for what is copied for saves; empty: none
  // The daemon's own variable of this name; null: not set.
  std::function<const char*(const char* name)> lookup;
};

// NAME=value, each name once.
std::vector<std::string> TrainerEnvironment(const v1::DesiredTrainer& desired, const EnvironmentOptions& options);

}  // namespace trainyard::agent
