// The verbs of trainctl, one file each. Every function adds its verb with its options to `app`; when the command line
// names it, `chosen` becomes what to run, which returns the exit code.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

#include "client/connection.h"

namespace trainyard::client {

struct Globals {
  std::string coordinator;  // empty: none configured
  bool allow_plaintext = false;

  Target target() const { return {.address = coordinator, .allow_plaintext = allow_plaintext}; }
};

// Connects to the coordinator that is configured. Possible errors: InvalidArgument: none is. Else as Connection::Open.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const Globals& globals);

using Chosen = std::function<int()>;

void AddRun(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddSubmit(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddList(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddStatus(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddWatch(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddLogs(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCancel(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddValidate(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddSample(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddVersion(CLI::App& app, const Globals& globals, Chosen* chosen);

// The options that run, submit and validate share.
struct JobOptions {
  std::string file;
  std::vector<std::string> overrides;
};
void AddJobOptions(CLI::App& verb, JobOptions* options);

}  // namespace trainyard::client
