#include "client/job_input.h"

#include "absl/strings/str_cat.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/hugging_face_folder.h"
#include "client/local_checks.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "spec/job_file.h"

namespace trainyard::client {

absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine) {
  const bool from_stdin = input.file == "-";
  auto text = ReadFile(from_stdin ? "/dev/stdin" : input.file, kYamlBytesMax);
  if (!text.ok()) {
    // Whatever the error is (a folder, too large, not readable), the user must give another file.
    return absl::Status(
        absl::IsNotFound(text.status()) ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
        absl::StrCat("cannot read the job file: ", text.status().message()));
  }
  LoadedJob job;
  job.spec = ReadJobFile({.text = *text,
                          .file_name = from_stdin ? "standard input" : input.file,
                          .working_directory = WorkingDirectory(),
                          .read_config = ReadConfigText,
                          .read_adapter_config = ReadAdapterConfigText,
                          .overrides = input.overrides},
                         &job.problems, &job.positions);
  if (on_this_machine) {
    CheckFiles(&job);
    if (job.problems.ok()) CheckMemory(job.spec, MachineMemoryBytes(), job.positions, &job.problems);
  }
  return job;
}

void CheckFiles(LoadedJob* job) {
  CheckText(job->spec, job->positions, &job->problems);
  CheckInitialWeights(job->spec, job->positions, &job->problems);
}

absl::Status ProblemsStatus(const JobInput& input, const Problems& problems) {
  absl::Status status = problems.ToStatus();
  if (status.ok()) return status;
  const int count = problems.error_count();
  return absl::InvalidArgumentError(
      absl::StrCat(count, count == 1 ? " problem" : " problems", " in ", input.file, ":\n", status.message()));
}

}  // namespace trainyard::client
