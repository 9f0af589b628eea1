// Turns a configuration file of Accelerate, DeepSpeed or transformers into a job: the first step of `trainctl import`,
// and of run, submit and validate if their file is no job file.
//
//   absl::optional<Dialect> dialect = DialectOf(text);
//   ForeignJob job = ImportFile(file, *dialect, read_text, &problems, &positions);
//   v1::JobSpec spec = job.spec;
//   CheckForeignJob(&job, file, &spec, &problems, &positions);   // presets, ranges, missing keys
//
// Pure, except for the functions that read other files. Takes about a millisecond for any text.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/problems.h"
#include "foreign/translation.h"
#include "spec/job_file.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::foreign {

// Returns the text of a file; relative paths are relative to the working directory.
using TextReader = std::function<absl::StatusOr<std::string>(const std::string& path)>;

struct ForeignJob {
  Dialect dialect = Dialect::kDeepSpeed;
  v1::JobSpec spec;              // the keys of the file and of --set, without those of a preset
  std::vector<KeyOutcome> keys;  // what became of each key of the file, in its order
  std::vector<std::string> notes;
  std::map<std::string, std::string> origins;  // the key of the file, by key of the job
  std::vector<std::string> missing;            // required keys of the job that nothing gives; set by CheckForeignJob
};

// The program that the file belongs to; none for a job file, and for other texts that are unknown or cannot be read.
absl::optional<Dialect> DialectOf(absl::string_view text);

// Why the text is neither a job file nor a file of another program; empty if it is one of them or cannot be read.
std::string WhyNeither(absl::string_view text);

// Problems name `file.file_name`, and positions are those of the keys in the file.
ForeignJob ImportFile(const JobFile& file, Dialect dialect, const TextReader& read_text, Problems* problems,
                      Positions* positions);

// Checks `spec`, a copy of `job->spec`, by the rules for job files. Missing keys are problems that say how to give
// them; they are also listed in `job`.
void CheckForeignJob(ForeignJob* job, const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions);

}  // namespace trainyard::foreign
