// Runs one job and shows it until it ends: the common part of `run` and `launch`. Without a coordinator it starts
// private daemons for the duration of the job; with a coordinator it submits the job there and watches it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands.h"
#include "client/job_input.h"
#include "client/progress.h"

namespace trainyard::client {

struct RunJobOptions {
  // Returns a job without errors. `on_this_machine`: the files of the job must be on this machine.
  std::function<absl::StatusOr<LoadedJob>(bool on_this_machine)> load;
  // Creates the object that shows the job; null: the text or the JSON of `run`.
  std::function<std::unique_ptr<Progress>()> make_progress = nullptr;
  std::string output_folder = {};  // of `launch --log-dir`; empty: none
  bool resume = false;
  bool allow_fresh_start = false;
  bool json = false;
  ReconnectOptions reconnect = {};
};

// Returns the exit code; all errors have been printed. REQUIRES: this process has one thread, and calls RunJob once.
int RunJob(const Globals& globals, const RunJobOptions& options);

}  // namespace trainyard::client
