// The verbs of trainctl, one file each. Every function adds its verb and options to `app`; if the command line names
// the verb, `chosen` is set to the function that runs it and returns the exit code.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "client/retry.h"

namespace trainyard::client {

struct Globals {
  std::string coordinator;  // empty: none configured
  bool allow_plaintext = false;
  std::string token_file;  // empty: the default location

  Target target() const {
    return {.address = coordinator, .allow_plaintext = allow_plaintext, .token_file = token_file};
  }
};

// Connects to the configured coordinator. Possible errors: InvalidArgument: none is configured; those of
// Connection::Open.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const Globals& globals, absl::Duration wait = kConnectWait);

using Chosen = std::function<int()>;

void AddRun(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddLaunch(CLI::App& app, const Globals& globals, Chosen* chosen);
// Returns the command line without a `--` between `launch` and the script: CLI11 would end the flags and arguments of
// `launch` there. Pure.
std::vector<std::string> WithoutLaunchSeparator(const CLI::App& app, std::vector<std::string> arguments);
void AddSubmit(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddList(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddStatus(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddWatch(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddLogs(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCancel(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddValidate(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddImport(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddConfig(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddSample(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddTokenize(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddRestart(CLI::App& app, const Globals& globals, Chosen* chosen);      // operate.cc
void AddPause(CLI::App& app, const Globals& globals, Chosen* chosen);        // operate.cc
void AddResume(CLI::App& app, const Globals& globals, Chosen* chosen);       // operate.cc
void AddSetPriority(CLI::App& app, const Globals& globals, Chosen* chosen);  // operate.cc
void AddQueue(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddGoodput(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddWhy(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddEvents(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCluster(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCordon(CLI::App& app, const Globals& globals, Chosen* chosen);    // hosts.cc
void AddUncordon(CLI::App& app, const Globals& globals, Chosen* chosen);  // hosts.cc
void AddDrain(CLI::App& app, const Globals& globals, Chosen* chosen);     // hosts.cc
void AddForget(CLI::App& app, const Globals& globals, Chosen* chosen);    // hosts.cc
void AddDoctor(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCheckpoint(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddParity(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddPlan(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddEstimate(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddSchedule(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddEnv(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddMetrics(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddHealth(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddVersion(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddHelp(CLI::App& app, const Globals& globals, Chosen* chosen);
void AddCompletion(CLI::App& app, const Globals& globals, Chosen* chosen);  // help.cc

// Adds --json, and -o json as a hidden synonym.
void AddJson(CLI::App& verb, bool* json, const std::string& help);

// Help text of the JOB argument, which FindJob resolves.
inline constexpr char kJobHelp[] = "Job id, a unique prefix of it, or a unique job name";

// Prints the error of `status` to standard error, and with `json` also as an object to standard output. Returns the
// exit code of `status`.
int ReportStatus(const absl::Status& status, bool json);

// Makes `app` and its verbs read whole numbers as decimal. CLI11 reads a number that begins with 0 as octal, so the
// step of the folder step-00000100 would be step 64.
void ReadNumbersAsDecimal(CLI::App& app);

// --if-version: the resource_version that a job or host must still have.
void AddIfVersion(CLI::App& verb, uint64_t* version);

// --reconnect-for: how long a verb that follows something waits for a coordinator that does not answer. `given`: the
// user gave the flag, which then also limits the wait for the first connection.
struct ReconnectOptions {
  RetryOptions retry;
  bool given = false;
  // The time that Connection::Open waits.
  absl::Duration connect_wait() const;
};
void AddReconnectFor(CLI::App& verb, ReconnectOptions* options);

// The options that run, submit and validate share.
struct JobOptions {
  std::string file;
  std::vector<std::string> overrides;
};
void AddJobOptions(CLI::App& verb, JobOptions* options);
void AddAllowDataChange(CLI::App& verb, JobOptions* options);
void AddAllowFreshStart(CLI::App& verb, bool* allow);

}  // namespace trainyard::client
