// Scripts by which shells complete trainctl's verbs and options; where neither is due, they complete names of files.
// Made from the command line's own declaration, so that they never lag behind it. Pure.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "absl/status/statusor.h"

namespace trainyard::client {

// `shell`: bash, zsh or fish. Possible errors: InvalidArgument: it is none of these.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace trainyard::client
