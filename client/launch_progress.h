// Shows a job of `trainctl launch` as torchrun does: the output of the ranks goes to standard output and standard error
// as it is, with a prefix that names the rank, and into the files of --log-dir. Messages about the job go to standard
// error; for a job that starts at once and succeeds without warnings and restarts, there are none.
#pragma once

#include <memory>

#include "client/launch_flags.h"
#include "client/progress.h"

namespace trainyard::client {

std::unique_ptr<Progress> NewLaunchProgress(const LaunchPlan& plan);

// <log_dir>/<job>/attempt_<restart>/<rank>/stdout.log. Pure.
std::string OutputFile(const std::string& log_dir, const std::string& job_id, const v1::LogLine& line);

}  // namespace trainyard::client
