// Files of `trainctl config`: looks for scripts, data and models in a folder, and writes the result. Replaces an
// existing file only on request.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard::client {

// Paths relative to the folder that was searched, sorted.
struct FoundFiles {
  std::vector<std::string> scripts;  // *.py, except below data/
  std::vector<std::string> data;     // *.txt, *.jsonl, *.csv; below data/ also *.bin, elsewhere no requirements*.txt
  std::vector<std::string> models;   // folders with config.json
};

// Searches `folder`, its folder `data` and the folders in `data`, without following links; stops after 10,000 entries.
// A file system that does not answer blocks the search, so `trainctl config` runs the search in a process of its own.
FoundFiles FindFiles(const std::string& folder);

// Writes `text` to a new file. With `replace`, replaces a file at `path` (a link itself, not its target). The file
// appears with all of its text, or not at all, unless the file system has neither RENAME_NOREPLACE nor hard links.
// Possible errors: AlreadyExists: without `replace`, there is a file; those of the system calls.
absl::Status WriteNewFile(const std::string& path, absl::string_view text, bool replace);

}  // namespace trainyard::client
