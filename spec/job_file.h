// Job files: YAML text and `--set key=value` to JobSpec, strictly. The first step of a job's path; run by trainctl.
// Pure; not thread-safe only in that `problems` is not.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

struct JobFile {
  absl::string_view text;
  std::string file_name;          // as problems name it
  std::string working_directory;  // relative paths are resolved against it
  std::vector<std::string>
      overrides;  // "key=value", value in YAML; a later one wins over an earlier, all over the file
};

// The spec with its preset applied, checked by ValidateJob. Nothing is defaulted or decided yet (see prepare.h): that
// is the coordinator's. With errors in `problems` the result is not to be used.
v1::JobSpec ReadJobFile(const JobFile& file, Problems* problems, Positions* positions = nullptr);

}  // namespace trainyard
