// trainctl, the command line of Trainyard. Parses the arguments and calls the file of the verb.
#include <signal.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/command_line_errors.h"
#include "client/commands.h"
#include "client/output.h"
#include "common/standard_descriptors.h"
#include "common/version.h"

namespace trainyard::client {

namespace {

// In the order of the help.
void AddVerbs(CLI::App& app, const Globals& globals, Chosen* chosen) {
  AddRun(app, globals, chosen);
  AddLaunch(app, globals, chosen);
  AddSubmit(app, globals, chosen);
  AddList(app, globals, chosen);
  AddStatus(app, globals, chosen);
  AddWatch(app, globals, chosen);
  AddLogs(app, globals, chosen);
  AddCancel(app, globals, chosen);
  AddRestart(app, globals, chosen);
  AddPause(app, globals, chosen);
  AddResume(app, globals, chosen);
  AddSetPriority(app, globals, chosen);
  AddQueue(app, globals, chosen);
  AddWhy(app, globals, chosen);
  AddEvents(app, globals, chosen);
  AddGoodput(app, globals, chosen);
  AddCluster(app, globals, chosen);
  AddCordon(app, globals, chosen);
  AddUncordon(app, globals, chosen);
  AddDrain(app, globals, chosen);
  AddForget(app, globals, chosen);
  AddHealth(app, globals, chosen);
  AddDoctor(app, globals, chosen);
  AddValidate(app, globals, chosen);
  AddImport(app, globals, chosen);
  AddConfig(app, globals, chosen);
  AddCheckpoint(app, globals, chosen);
  AddParity(app, globals, chosen);
  AddSample(app, globals, chosen);
  AddTokenize(app, globals, chosen);
  AddPlan(app, globals, chosen);
  AddEstimate(app, globals, chosen);
  AddSchedule(app, globals, chosen);
  AddMetrics(app, globals, chosen);
  AddEnv(app, globals, chosen);
  AddVersion(app, globals, chosen);
  AddHelp(app, globals, chosen);
  AddCompletion(app, globals, chosen);
}

int Main(int argc, char** argv) {
  CLI::App app("Trainyard: distributed training from one job file.", "trainctl");
  app.footer(
      "JOB is a job id, a unique prefix of one, or a unique job name. -o json is the same as --json.\n"
      "Exit codes: 0 done, 1 failed, 2 bad input, 3 coordinator unreachable, 130 cancelled.\n\n"
      "Examples:\n"
      "  trainctl run configs/jobs/stdlib.yaml                  train on this machine, with private daemons\n"
      "  trainctl --coordinator 127.0.0.1:7070 submit job.yaml  train on a cluster\n"
      "  trainctl help VERB                                     show the options of a verb");
  app.set_version_flag("-V,--version", absl::StrCat("trainctl ", kVersion));
  Globals globals;
  app.add_option("--coordinator", globals.coordinator, "Address of the coordinator: host:port or unix:PATH")
      ->envname("TRAINYARD_COORDINATOR")
      ->type_name("HOST:PORT");
  app.add_flag("--allow-plaintext", globals.allow_plaintext,
               "Connect without encryption to a coordinator on another machine");
  app.add_option("--token-file", globals.token_file,
                 "File with the coordinator's token; not needed for your own coordinator on this machine")
      ->envname("TRAINYARD_TOKEN_FILE")
      ->type_name("FILE");
  app.require_subcommand(1);
  app.fallthrough();
  Chosen chosen;
  AddVerbs(app, globals, &chosen);
  ReadNumbersAsDecimal(app);
  try {
    std::vector<std::string> arguments = WithoutLaunchSeparator(app, {argv + std::min(argc, 1), argv + argc});
    std::reverse(arguments.begin(), arguments.end());  // the order in which CLI11 expects them
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help and --version
      std::ostringstream text;
      const int exit_code = app.exit(error, text, text);
      PrintRaw(text.str());
      return exit_code;
    }
    const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    return ReportStatus(absl::InvalidArgumentError(CommandLineErrorMessage(app, error, arguments)),
                        RequestsJson(arguments));
  }
  return chosen();
}

}  // namespace
}  // namespace trainyard::client

int main(int argc, char** argv) {
  trainyard::OpenStandardDescriptors();
  // If a pipe's other end is closed, a write fails, and FinishOutput reports this; the signal must not kill trainctl.
  signal(SIGPIPE, SIG_IGN);
  return trainyard::client::FinishOutput(trainyard::client::Main(argc, argv));
}
