// What a configuration file of Accelerate or DeepSpeed means for a script that Accelerate's library configures: the
// number of processes, and the environment variables that `accelerate launch` sets for it. `trainctl launch
// --config_file` uses it. The names and values are those of Accelerate 1.15 (utils/launch.py). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/problems.h"

namespace trainyard::foreign {

// Flags of `accelerate launch`, which replace values of the file.
struct ScriptLaunchFlags {
  absl::optional<int64_t> num_processes = absl::nullopt;  // of all machines
  absl::optional<int64_t> num_machines = absl::nullopt;
  std::string mixed_precision = {};  // empty: not given, as in the next two
  std::string dynamo_backend = {};
  std::string gpu_ids = {};
  bool cpu = false;
  bool multi_gpu = false;
  bool debug = false;
};

struct ScriptLaunch {
  int64_t num_processes = 0;  // 0: neither file nor flags give it
  int64_t num_machines = 1;
  std::vector<std::string> env;    // NAME=value
  std::vector<std::string> notes;  // sentences: flags that replace values of the file, and keys without effect
};

// Reads the text of `file_name`, which is absolute. An empty text stands for no file: then the flags alone
// decide. Unknown keys are problems, and so are files for SageMaker, TPUs and other devices.
ScriptLaunch ReadScriptLaunch(absl::string_view text, const std::string& file_name, const ScriptLaunchFlags& flags,
                              Problems* problems);

}  // namespace trainyard::foreign
