// Reads job files: YAML text and `--set key=value` become a JobSpec, with strict checks. Used by trainctl. Pure, except
// for the functions that read other files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

struct JobFile {
  absl::string_view text;
  std::string file_name;          // for messages
  std::string working_directory;  // relative paths are resolved against it
  // Returns the text of config.json in the folder that train.model.path names; null: the text is not read, and the job
  // must contain it.
  std::function<absl::StatusOr<std::string>(const std::string& folder)> read_config = nullptr;
  // The same for adapter_config.json in the folder that train.lora.path names.
  std::function<absl::StatusOr<std::string>(const std::string& folder)> read_adapter_config = nullptr;
  // Returns the text of the file that train.data.chat_template names; null: the job must contain the text.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_chat_template = nullptr;
  std::vector<std::string> overrides;  // "key=value", value in YAML; overrides the file and earlier entries
  // Changes the complete job before it is checked, and the positions of its keys; null: the job stays as it is.
  std::function<void(v1::JobSpec* spec, Positions* positions)> before_checks = nullptr;
};

// Returns the spec with its preset applied, checked by ValidateJob. The coordinator sets the defaults later
// (prepare.h). The result is invalid if `problems` has errors.
v1::JobSpec ReadJobFile(const JobFile& file, Problems* problems, Positions* positions = nullptr);

// The steps of ReadJobFile after the text has been read. Callers that get the spec in another way use them directly:
// from the configuration of another program (foreign/import.h), or from answers to questions (client/config_draft.h).

// Sets the keys of `file.overrides`.
void ApplyOverrides(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions);
// Fills in the sizes of the model, from its preset or config.json.
void CompleteModel(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions);
// As CompleteModel; also fills in the settings of adapters, the text of the chat template and the folder of a command,
// calls `file.before_checks`, removes invalid values, and checks the job.
void CompleteJob(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions);

}  // namespace trainyard
