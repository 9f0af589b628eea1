// A job as given on the command line: a file (or standard input) and --set options. Used by run, submit and validate.
// The file is a job file, or a configuration file of another program (foreign/import.h), which is translated.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/problems.h"
#include "foreign/import.h"
#include "spec/job_file.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

struct JobInput {
  std::string file;                    // "-": standard input
  std::vector<std::string> overrides;  // key=value
  // See JobFile (spec/job_file.h).
  std::function<void(v1::JobSpec* spec, Positions* positions)> before_checks = nullptr;
};

struct LoadedJob {
  v1::JobSpec spec;
  Problems problems;
  Positions positions;             // of its keys in the file
  std::vector<std::string> notes;  // what the user should know about the translation of a foreign file
};

// Reads and checks a job; `on_this_machine` adds the checks of local_checks.h. Problems of the job are returned in
// `problems`. Possible errors: NotFound: the file does not exist. InvalidArgument: it cannot be read, or it is neither
// a job file nor one of another program.
absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine);

// Returns the text of the input's file. Possible errors: NotFound and InvalidArgument, as LoadJob.
absl::StatusOr<std::string> ReadJobText(const JobInput& input);

// Combines `text` with what else the readers of job files need. REQUIRES: `text` outlives the result.
JobFile JobFileOf(const JobInput& input, absl::string_view text);

// Reads a file that a foreign file names.
absl::StatusOr<std::string> ReadNamedFile(const std::string& path);

// Adds the problems of the files that the job reads, for a job that runs on this machine.
void CheckFiles(LoadedJob* job);

// Prints the notes and warnings of a job to standard error.
void PrintNotesAndWarnings(const LoadedJob& job);

// The errors of a job as one status: "N problems in job.yaml:" and one line for each.
absl::Status ProblemsStatus(const JobInput& input, const Problems& problems);

}  // namespace trainyard::client
