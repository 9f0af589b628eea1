#include "client/command_line_errors.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/text.h"
#include "common/nearest_name.h"

namespace trainyard::client {
namespace {

constexpr size_t kVerbBytes = 100;  // the most bytes of an unknown verb that a message shows

// Verbs of other programs, with what to use instead.
struct Hint {
  const char* verb;
  const char* instead;
};
constexpr char kHowToEndJobs[] = "`trainctl cancel JOB` ends a job (--save saves first); no verb removes its files";
constexpr char kHowToStartJobs[] =
    "`trainctl submit FILE` submits a job to a coordinator, `trainctl run FILE` trains it on this machine";
constexpr Hint kHints[] = {
    {"get", "`trainctl list` lists jobs, `trainctl status JOB` shows one, `trainctl cluster` lists hosts"},
    {"delete", kHowToEndJobs},
    {"kill", kHowToEndJobs},
    {"stop", kHowToEndJobs},
    {"rm", "`trainctl cancel JOB` ends a job, `trainctl checkpoint rm` removes checkpoints"},
    {"top",
     "`trainctl watch JOB` shows a job while it trains, `trainctl status JOB` its ranks, `trainctl cluster` the hosts"},
    {"start", kHowToStartJobs},
    {"create", kHowToStartJobs},
    {"apply", kHowToStartJobs},
    {"train", kHowToStartJobs},
    {"attach", "`trainctl watch JOB` shows a job while it trains, `trainctl logs -f JOB` what its rank 0 prints"},
    {"save", "`trainctl checkpoint now JOB` makes a running job save"},
    {"export", "`trainctl checkpoint export RUN OUT` writes a folder that transformers opens"},
    {"verify", "`trainctl checkpoint verify RUN` verifies the checkpoints of a run folder or a job"},
    {"info", "`trainctl status JOB` shows a job, `trainctl cluster` the hosts, `trainctl version` versions"},
};

std::vector<std::string> VerbsOf(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  return verbs;
}

// The first argument where a verb is expected, if there is no such verb; otherwise empty.
std::string UnknownVerb(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const CLI::Option* option = app.get_option_no_throw(arguments[i]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // skip its value
    if (option != nullptr || arguments[i].empty() || arguments[i][0] == '-') continue;
    return FindVerb(app, arguments[i]) == nullptr ? arguments[i] : "";
  }
  return "";
}

}  // namespace

const CLI::App* FindVerb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->check_name(name)) return verb;
  }
  return nullptr;
}

std::string UnknownVerbMessage(const CLI::App& app, const std::string& name) {
  const std::vector<std::string> verbs = VerbsOf(app);
  std::string instead;
  if (app.get_parent() == nullptr) {
    const auto hint =
        std::find_if(std::begin(kHints), std::end(kHints), [&](const Hint& known) { return known.verb == name; });
    if (hint != std::end(kHints)) instead = absl::StrCat(": ", hint->instead, ".");
  }
  if (instead.empty()) {
    const std::string nearest = NearestName(name, verbs);
    instead = nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?");
  }
  return absl::StrCat("there is no verb '", Printable(name, kVerbBytes), "'", instead,
                      verbs.empty() ? "" : absl::StrCat(" Verbs: ", absl::StrJoin(verbs, ", ")));
}

std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back(absl::StrCat("--", name));
  }
  return flags;
}

std::string SuggestFlag(const std::string& given, const std::vector<std::string>& flags) {
  if (!absl::StartsWith(given, "--")) return "";
  const std::string nearest = NearestName(given.substr(0, given.find('=')), flags);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::string CommandLineErrorMessage(const CLI::App& app, const CLI::ParseError& error,
                                    const std::vector<std::string>& arguments) {
  if (const std::string verb = UnknownVerb(app, arguments); !verb.empty()) return UnknownVerbMessage(app, verb);
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    absl::StrAppend(&name, " ", command->get_name());
  }
  const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
  const bool verb_expected = !command->get_subcommands({}).empty();
  if (verb_expected && !extra.empty() && extra.front()[0] != '-') return UnknownVerbMessage(*command, extra.front());
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !extra.empty()) {
    return absl::StrCat(
        extra.size() == 1 ? "unexpected argument: " : "unexpected arguments: ", absl::StrJoin(extra, " "), " (see ",
        name, " --help)", SuggestFlag(extra.front(), FlagsOf(*command)));
  }
  const std::vector<std::string> verbs = VerbsOf(*command);
  if (!verbs.empty()) {
    return absl::StrCat(arguments.empty() ? "no verb is given" : error.what(), "; see ", name,
                        " --help. Verbs: ", absl::StrJoin(verbs, ", "));
  }
  return absl::StrCat(error.what(), " (see ", name, " --help)");
}

bool RequestsJson(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--json" || arguments[i] == "-ojson" || arguments[i] == "--output=json") return true;
    if ((arguments[i] == "-o" || arguments[i] == "--output") && i + 1 < arguments.size() && arguments[i + 1] == "json")
      return true;
  }
  return false;
}

}  // namespace trainyard::client
