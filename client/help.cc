// trainctl help and completion: describe the verbs to users and to their shells.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/command_line_errors.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "common/files.h"
#include "common/man_page.h"
#include "common/status_macros.h"
#include "common/user_path.h"

namespace trainyard::client {
namespace {

struct HelpOptions {
  std::vector<std::string> verbs;
  bool man = false;
  std::string man_pages;  // a folder; empty: none
};

// The page of trainctl refers to those of the daemons.
ManPageOptions ManPageOf(const std::string& command) {
  ManPageOptions options{.name = absl::StrReplaceAll(command, {{" ", "-"}}), .command = command};
  if (command == "trainctl") options.see_also = {{"trainyard-coordinator", 8}, {"trainyard-worker", 8}};
  return options;
}

absl::Status WriteManPages(const CLI::App& app, const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string path, PathOfUser(folder, WorkingDirectory()));
  RETURN_IF_ERROR(MakeFolders(path, 0755));
  for (const NamedText& page : ManPagesOf(app, ManPageOf(app.get_name()))) {
    RETURN_IF_ERROR(WriteFileAtomically(JoinPath(path, page.name), page.text, 0644)) << "while writing a manual page";
  }
  return absl::OkStatus();
}

absl::Status Help(const CLI::App& app, const HelpOptions& options) {
  if (!options.man_pages.empty()) return WriteManPages(app, options.man_pages);
  const CLI::App* command = &app;
  std::string name = app.get_name();
  for (const std::string& verb : options.verbs) {
    const CLI::App* child = FindVerb(*command, verb);
    if (child == nullptr) return absl::InvalidArgumentError(UnknownVerbMessage(*command, verb));
    command = child;
    absl::StrAppend(&name, " ", command->get_name());
  }
  if (options.man) {
    PrintRaw(ManPage(*command, ManPageOf(name)));
    return absl::OkStatus();
  }
  // App::help would describe the parsed verb, which is `help` itself.
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
  auto options = std::make_shared<HelpOptions>();
  CLI::App* verb = app.add_subcommand("help", "Show the options of a verb; the same as VERB --help");
  verb->add_option("verb", options->verbs, "Verb, such as `run` or `checkpoint export`");
  verb->add_flag("--man", options->man, "Print the manual page instead, for man -l -");
  verb->add_option("--man-pages", options->man_pages, "Write the manual pages of all verbs into this folder")
      ->type_name("FOLDER");
  verb->footer(
      "Examples:\n  trainctl help\n  trainctl help checkpoint export\n"
      "  trainctl help --man-pages ~/.local/share/man/man1");
  verb->callback(
      [&app, options, chosen] { *chosen = [&app, options] { return ReportStatus(Help(app, *options), false); }; });
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
