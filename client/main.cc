// trainctl: how a person trains with Trainyard. Reads the command line, hands over to the verb's own file.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "common/strict_yaml.h"
#include "common/version.h"

namespace trainyard::client {

namespace {

// CLI11 says which words it did not expect; a mistyped verb deserves its neighbour.
void HintVerb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--coordinator") ++i;
    if (word.empty() || word[0] == '-') continue;
    if (std::find(verbs.begin(), verbs.end(), word) != verbs.end()) return;
    std::string nearest = NearestWord(word, verbs);
    fprintf(stderr, "trainctl: there is no verb '%s'%s Verbs: %s\n", word.c_str(),
            nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?").c_str(),
            absl::StrJoin(verbs, ", ").c_str());
    return;
  }
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
  AddValidate(app, globals, &chosen);
  AddSample(app, globals, &chosen);
  AddVersion(app, globals, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    HintVerb(app, argc, argv);
    app.exit(error);
    return kExitBadInput;
  }
  return chosen();
}

}  // namespace
}  // namespace trainyard::client

int main(int argc, char** argv) { return trainyard::client::Main(argc, argv); }
