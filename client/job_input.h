// A job as commands take it: a file (or standard input) and its `--set`s. Used by run, submit and validate.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

struct JobInput {
  std::string file;                    // "-": standard input
  std::vector<std::string> overrides;  // key=value
};

struct LoadedJob {
  v1::JobSpec spec;
  Problems problems;
};

// Reads and checks; `on_this_machine` adds the checks of local_checks.h. What is wrong with the job is in `problems`.
// Possible errors: NotFound, PermissionDenied, ...: the file cannot be read.
absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine);

// The errors of a job as one status: "N problems in job.yaml:" and a line each.
absl::Status ProblemsStatus(const JobInput& input, const Problems& problems);

}  // namespace trainyard::client
