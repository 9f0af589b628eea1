// A job as given on the command line: a file (or standard input) and --set options. Used by run, submit and validate.
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
  Positions positions;  // of its keys in the file
};

// Reads and checks a job; `on_this_machine` adds the checks of local_checks.h. Problems of the job are returned in
// `problems`. Possible errors: NotFound: the file does not exist. InvalidArgument: it cannot be read.
absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine);

// Adds the problems of the files that the job reads, for a job that runs on this machine.
void CheckFiles(LoadedJob* job);

// The errors of a job as one status: "N problems in job.yaml:" and one line for each.
absl::Status ProblemsStatus(const JobInput& input, const Problems& problems);

}  // namespace trainyard::client
