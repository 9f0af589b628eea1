// What a person hears who typed a word that is no verb of trainctl. Pure.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace trainyard::client {

// The verb of `app` with this name or alias; null: there is none.
const CLI::App* VerbNamed(const CLI::App& app, const std::string& word);

// "there is no verb 'delete': trainctl cancel JOB ends a job. Verbs: ...". `app`: of whose verbs it should be one.
std::string NoSuchVerb(const CLI::App& app, const std::string& word);

// What is wrong with a command line that `app` refused with `error`, in one sentence.
std::string WrongCommandLine(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words);

// Whether these words ask for JSON: --json, or -o json.
bool AsksForJson(const std::vector<std::string>& words);

}  // namespace trainyard::client
