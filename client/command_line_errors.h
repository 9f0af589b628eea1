// Error messages for wrong command lines. Pure.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace trainyard::client {

// The verb of `app` with this name or alias; null if there is none.
const CLI::App* FindVerb(const CLI::App& app, const std::string& name);

// "there is no verb 'delete': trainctl cancel JOB ends a job. Verbs: ...". `app` is the command whose verb was
// expected.
std::string UnknownVerbMessage(const CLI::App& app, const std::string& name);

// The long flags of a command: "--name", "--nproc-per-node".
std::vector<std::string> FlagsOf(const CLI::App& command);

// "; did you mean --nproc-per-node?" for a flag that is not one of `flags`, with or without "=VALUE". Empty: none is
// similar.
std::string SuggestFlag(const std::string& given, const std::vector<std::string>& flags);

// Describes in one sentence what is wrong with a command line that `app` rejected with `error`.
std::string CommandLineErrorMessage(const CLI::App& app, const CLI::ParseError& error,
                                    const std::vector<std::string>& arguments);

// Returns whether these arguments request JSON: --json or -o json.
bool RequestsJson(const std::vector<std::string>& arguments);

}  // namespace trainyard::client
