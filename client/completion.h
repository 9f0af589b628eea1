// Shell scripts that complete trainctl's verbs and options, and all other words as file names. The scripts are
// generated from the declared command line, so they are always up to date. Pure.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "absl/status/statusor.h"

namespace trainyard::client {

// `shell`: bash, zsh or fish. Possible errors: InvalidArgument: another shell.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace trainyard::client
