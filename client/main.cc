// trainctl: how a person trains with Trainyard. Reads the command line, hands over to the verb's own file.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "common/standard_descriptors.h"
#include "common/strict_yaml.h"
#include "common/version.h"

namespace trainyard::client {

namespace {

// What the user typed where a verb was due, when that is none: CLI11 says only that it did not expect it.
std::string VerbHint(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--coordinator" || word == "--token-file") ++i;
    if (word.empty() || word[0] == '-') continue;
    if (std::find(verbs.begin(), verbs.end(), word) != verbs.end()) return "";
    std::string nearest = NearestWord(word, verbs);
    return absl::StrCat("there is no verb '", word, "'",
                        nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                        " Verbs: ", absl::StrJoin(verbs, ", "));
  }
  return absl::StrCat(argc > 1 ? error.what() : "no verb is given",
                      "; trainctl --help tells more. Verbs: ", absl::StrJoin(verbs, ", "));
}

// What is wrong with the command line, in one sentence of ours.
int RefuseCommandLine(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string text = VerbHint(app, error, argc, argv);
  if (text.empty()) {
    std::string verb;
    for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      absl::StrAppend(&verb, " ", at->get_name());
    }
    text = absl::StrCat(error.what(), " (trainctl", verb, " --help tells what there is)");
  }
  const bool json = std::any_of(argv, argv + argc, [](const char* word) { return strcmp(word, "--json") == 0; });
  return ExitOf(absl::InvalidArgumentError(text), json);
}

int Main(int argc, char** argv) {
  CLI::App app("Trainyard: distributed training from one job file.", "trainctl");
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad input, 3 coordinator unreachable, 130 cancelled.\n\n"
      "Examples:\n"
      "  trainctl run configs/jobs/stdlib.yaml                  train here, with daemons of its own\n"
      "  trainctl --coordinator 127.0.0.1:7070 submit job.yaml  train on a cluster\n"
      "  trainctl VERB --help                                   more on a verb");
  app.set_version_flag("--version", absl::StrCat("trainctl ", kVersion));
  Globals globals;
  app.add_option("--coordinator", globals.coordinator, "Coordinator to talk to")
      ->envname("TRAINYARD_COORDINATOR")
      ->type_name("HOST:PORT");
  app.add_flag("--allow-plaintext", globals.allow_plaintext,
               "Talk plain text to a coordinator that is not on this machine");
  app.add_option("--token-file", globals.token_file,
                 "File with the token that the coordinator asks for; a coordinator of yours on this machine needs none")
      ->envname("TRAINYARD_TOKEN_FILE")
      ->type_name("FILE");
  app.require_subcommand(1);
  app.fallthrough();
  Chosen chosen;
  AddRun(app, globals, &chosen);
  AddSubmit(app, globals, &chosen);
  AddList(app, globals, &chosen);
  AddStatus(app, globals, &chosen);
  AddWatch(app, globals, &chosen);
  AddLogs(app, globals, &chosen);
  AddCancel(app, globals, &chosen);
  AddRestart(app, globals, &chosen);
  AddPause(app, globals, &chosen);
  AddResume(app, globals, &chosen);
  AddWhy(app, globals, &chosen);
  AddEvents(app, globals, &chosen);
  AddGoodput(app, globals, &chosen);
  AddCluster(app, globals, &chosen);
  AddCordon(app, globals, &chosen);
  AddUncordon(app, globals, &chosen);
  AddDrain(app, globals, &chosen);
  AddForget(app, globals, &chosen);
  AddDoctor(app, globals, &chosen);
  AddValidate(app, globals, &chosen);
  AddCheckpoint(app, globals, &chosen);
  AddParity(app, globals, &chosen);
  AddSample(app, globals, &chosen);
  AddVersion(app, globals, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return RefuseCommandLine(app, error, argc, argv);
  }
  return chosen();
}

}  // namespace
}  // namespace trainyard::client

int main(int argc, char** argv) { return trainyard::client::Main(argc, argv); }
