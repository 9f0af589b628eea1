// trainctl help and completion: describe the verbs to users and to their shells.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command_line_errors.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

absl::Status Help(const CLI::App& app, const std::vector<std::string>& verbs) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  for (const std::string& verb : verbs) {
    const CLI::App* child = FindVerb(*command, verb);
    if (child == nullptr) return absl::InvalidArgumentError(UnknownVerbMessage(*command, verb));
    command = child;
    absl::StrAppend(&name, " ", command->get_name());
  }
  // Not App::help, which would describe the parsed verb: `help` itself.
  Print(command->get_formatter()->make_help(command, name, CLI::AppFormatMode::Normal));
  return absl::OkStatus();
}

absl::Status Completion(const CLI::App& app, const std::string& shell) {
  ASSIGN_OR_RETURN(const std::string script, CompletionScript(app, shell));
  PrintRaw(script);
  return absl::OkStatus();
}

}  // namespace

void AddHelp(CLI::App& app, const Globals&, Chosen* chosen) {
  auto verbs = std::make_shared<std::vector<std::string>>();
  CLI::App* verb = app.add_subcommand("help", "Show the options of a verb; the same as VERB --help");
  verb->add_option("verb", *verbs, "Verb, such as `run` or `checkpoint export`");
  verb->footer("Examples:\n  trainctl help\n  trainctl help checkpoint export");
  verb->callback([&app, verbs, chosen] { *chosen = [&app, verbs] { return ReportStatus(Help(app, *verbs), false); }; });
}

void AddCompletion(CLI::App& app, const Globals&, Chosen* chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Print a completion script for a shell");
  verb->add_option("shell", *shell, "bash, zsh or fish")->required();
  verb->footer(
      "Examples:\n  source <(trainctl completion bash)\n"
      "  trainctl completion fish > ~/.config/fish/completions/trainctl.fish");
  verb->callback(
      [&app, shell, chosen] { *chosen = [&app, shell] { return ReportStatus(Completion(app, *shell), false); }; });
}

}  // namespace trainyard::client
