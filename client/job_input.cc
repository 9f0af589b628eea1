#include "client/job_input.h"

#include "absl/strings/str_cat.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/hugging_face_folder.h"
#include "client/local_checks.h"
#include "client/output.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "spec/job_file.h"

namespace trainyard::client {
namespace {

constexpr size_t kChatTemplateBytesMax = 64 << 10;  // of train.data.chat_template

absl::StatusOr<std::string> ReadChatTemplateText(const std::string& path) {
  return ReadRegularFile(AbsolutePath(path, WorkingDirectory()), kChatTemplateBytesMax);
}

}  // namespace

absl::StatusOr<std::string> ReadJobText(const JobInput& input) {
  auto text = input.file == "-" ? ReadStandardInput(kYamlBytesMax) : ReadFile(input.file, kYamlBytesMax);
  if (text.ok()) return text;
  // Whatever the error is (a folder, too large, not readable), the user must give another file.
  return absl::Status(
      absl::IsNotFound(text.status()) ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
      absl::StrCat("cannot read the job file: ", text.status().message()));
}

JobFile JobFileOf(const JobInput& input, absl::string_view text) {
  return {.text = text,
          .file_name = input.file == "-" ? "standard input" : input.file,
          .working_directory = WorkingDirectory(),
          .read_config = ReadConfigText,
          .read_adapter_config = ReadAdapterConfigText,
          .read_chat_template = ReadChatTemplateText,
          .overrides = input.overrides,
          .before_checks = input.before_checks};
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& path) {
  return ReadFile(AbsolutePath(path, WorkingDirectory()), kYamlBytesMax);
}

absl::StatusOr<LoadedJob> LoadJob(const JobInput& input, bool on_this_machine) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobText(input));
  const JobFile file = JobFileOf(input, text);
  LoadedJob job;
  if (const absl::optional<foreign::Dialect> dialect = foreign::DialectOf(text); dialect.has_value()) {
    foreign::ForeignJob imported = foreign::ImportFile(file, *dialect, ReadNamedFile, &job.problems, &job.positions);
    job.spec = imported.spec;
    foreign::CheckForeignJob(&imported, file, &job.spec, &job.problems, &job.positions);
    job.notes.push_back(absl::StrCat(input.file, " is a configuration file of ", foreign::DialectName(*dialect),
                                     "; `trainctl import ", input.file, " --explain` shows what each key becomes"));
    job.notes.insert(job.notes.end(), imported.notes.begin(), imported.notes.end());
  } else if (const std::string why = foreign::WhyNeither(text); !why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(input.file, " ", why));
  } else {
    job.spec = ReadJobFile(file, &job.problems, &job.positions);
  }
  if (on_this_machine) {
    CheckFiles(&job);
    if (job.problems.ok()) CheckMemory(job.spec, MachineMemoryBytes(), job.positions, &job.problems);
  }
  return job;
}

void PrintNotesAndWarnings(const LoadedJob& job) {
  for (const std::string& note : job.notes) SayUnprefixed(note);
  for (const Problem& warning : job.problems.Warnings()) SayUnprefixed(warning.ToString());
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
