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
  Positions positions;  // where its keys stand
};

// Reads and checks; `on_this_machine` adds the checks of local_checks.h. What is wrong with the job is in `problems`.
// Possible errors: NotFound: there is no such file. InvalidArgument: it cannot be read.
absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine);

// Adds what is wrong with the files that the job reads, for one that runs on this machine.
void CheckFiles(LoadedJob* job);

// The errors of a job as one status: "N problems in job.yaml:" and a line each.
absl::Status ProblemsStatus(const JobInput& input, const Problems& problems);

}  // namespace trainyard::client
