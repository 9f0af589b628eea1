#include "client/verb_words.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/text.h"
#include "common/strict_yaml.h"

namespace trainyard::client {
namespace {

constexpr size_t kWordBytes = 100;

// Verbs of other programs, with what to use instead.
struct Hint {
  const char* word;
  const char* instead;
};
constexpr char kEnds[] = "`trainctl cancel JOB` ends a job (--save saves first); no verb removes its files";
constexpr char kStarts[] =
    "`trainctl submit FILE` submits a job to a coordinator, `trainctl run FILE` trains it on this machine";
constexpr Hint kHints[] = {
    {"get", "`trainctl list` lists jobs, `trainctl status JOB` shows one, `trainctl cluster` lists hosts"},
    {"delete", kEnds},
    {"kill", kEnds},
    {"stop", kEnds},
    {"rm", "`trainctl cancel JOB` ends a job, `trainctl checkpoint rm` removes checkpoints"},
    {"top",
     "`trainctl watch JOB` shows a job while it trains, `trainctl status JOB` its ranks, `trainctl cluster` the hosts"},
    {"start", kStarts},
    {"create", kStarts},
    {"apply", kStarts},
    {"train", kStarts},
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

// The first word in place of a verb that is not one; empty: there is none.
std::string UnknownVerb(const CLI::App& app, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const CLI::Option* option = app.get_option_no_throw(words[i]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // skip its value
    if (option != nullptr || words[i].empty() || words[i][0] == '-') continue;
    return VerbNamed(app, words[i]) == nullptr ? words[i] : "";
  }
  return "";
}

}  // namespace

const CLI::App* VerbNamed(const CLI::App& app, const std::string& word) {
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->check_name(word)) return verb;
  }
  return nullptr;
}

std::string NoSuchVerb(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> verbs = VerbsOf(app);
  std::string instead;
  if (app.get_parent() == nullptr) {
    const auto hint =
        std::find_if(std::begin(kHints), std::end(kHints), [&](const Hint& known) { return known.word == word; });
    if (hint != std::end(kHints)) instead = absl::StrCat(": ", hint->instead, ".");
  }
  if (instead.empty()) {
    const std::string nearest = NearestName(word, verbs);
    instead = nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?");
  }
  return absl::StrCat("there is no verb '", Printable(word, kWordBytes), "'", instead,
                      verbs.empty() ? "" : absl::StrCat(" Verbs: ", absl::StrJoin(verbs, ", ")));
}

std::string WrongCommandLine(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  if (const std::string word = UnknownVerb(app, words); !word.empty()) return NoSuchVerb(app, word);
  const CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&name, " ", at->get_name());
  }
  // CLI11 returns them in reverse.
  const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
  const bool verb_is_due = !at->get_subcommands({}).empty();
  if (verb_is_due && !extra.empty() && extra.front()[0] != '-') return NoSuchVerb(*at, extra.front());
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !extra.empty()) {
    return absl::StrCat(extra.size() == 1 ? "unexpected argument: " : "unexpected arguments: ",
                        absl::StrJoin(extra, " "), " (see ", name, " --help)");
  }
  const std::vector<std::string> verbs = VerbsOf(*at);
  if (!verbs.empty()) {
    return absl::StrCat(words.empty() ? "no verb is given" : error.what(), "; see ", name,
                        " --help. Verbs: ", absl::StrJoin(verbs, ", "));
  }
  return absl::StrCat(error.what(), " (see ", name, " --help)");
}

bool AsksForJson(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--json" || words[i] == "-ojson" || words[i] == "--output=json") return true;
    if ((words[i] == "-o" || words[i] == "--output") && i + 1 < words.size() && words[i + 1] == "json") return true;
  }
  return false;
}

}  // namespace trainyard::client
