// Reads job files: YAML text and `--set key=value` become a JobSpec, with strict checks. Used by trainctl. Pure, except
// for `read_config` and `read_adapter_config`.
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
  std::vector<std::string> overrides;  // "key=value", value in YAML; overrides the file and earlier entries
};

// Returns the spec with its preset applied, checked by ValidateJob. The coordinator sets the defaults later
// (prepare.h). The result is invalid if `problems` has errors.
v1::JobSpec ReadJobFile(const JobFile& file, Problems* problems, Positions* positions = nullptr);

}  // namespace trainyard
