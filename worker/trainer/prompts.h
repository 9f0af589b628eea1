// Reads the prompts of `trainctl sample --prompts`: a text file with a prompt in each line, or JSON lines, each an
// object with the field "prompt". Empty lines are ignored, and in JSON lines also lines of blanks. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/problems.h"

namespace trainyard {

struct Prompt {
  std::string text;
  Position position;  // no file: from the command line
};

// `path` decides the form: JSON lines if it ends with .jsonl. Adds what is wrong with a line to `problems`. Pure.
std::vector<Prompt> ParsePrompts(absl::string_view text, const std::string& path, Problems& problems);

// Fails with the errors of ReadFile, and with InvalidArgument if the file has no prompt.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path, Problems& problems);

}  // namespace trainyard
