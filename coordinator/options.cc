#include "coordinator/options.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/man_page.h"
#include "common/problems.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "common/user_path.h"
#include "common/version.h"
#include "coordinator/core/event_table.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/rpc/server.h"
#include "trainyard/v1/config.pb.h"

namespace trainyard {
namespace {

struct Flags {
  std::optional<std::string> listen, state, metrics, config, token_file, viewer_token_file, log_format, log_level,
      log_file;
  std::optional<uint32_t> lease_ms;
  bool allow_plaintext = false;
  bool allow_local_users = false;
  bool no_page = false;
  bool no_webhooks = false;
  bool version = false;
  bool print_lifecycle = false;
  bool print_events = false;
  bool print_man = false;
  int lifeline_fd = -1;
  int ready_fd = -1;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen,
                 "host:port of the gRPC API (port 0: any free port) or unix:PATH (default 127.0.0.1:7070)");
  app.add_option("--state", flags.state, "folder of the store (required, here or in --config)");
  app.add_option(
      "--metrics", flags.metrics,
      "host:port of /metrics, of the status page and of the API in JSON (default 127.0.0.1:7071); empty: none");
  app.add_flag("--no-page", flags.no_page, "serve /metrics only, without the status page and the API in JSON");
  app.add_flag("--no-webhooks", flags.no_webhooks, "refuse jobs with on_end.webhook, and send no webhooks");
  app.add_option("--config", flags.config, "configuration file in YAML; flags override it");
  app.add_flag("--allow-plaintext", flags.allow_plaintext, "serve plain text on an address other than loopback");
  app.add_flag("--allow-local-users", flags.allow_local_users, "let every user of this host call the API on loopback");
  app.add_option(
      "--token-file", flags.token_file,
      "file with the token that calls must carry; created if it does not exist (default on loopback: a new token "
      "at each start, which programs of this user find)");
  app.add_option("--viewer-token-file", flags.viewer_token_file,
                 "file with a second token; callers who send it may only read, and see no specs of jobs; created if it "
                 "does not exist (default: there are no viewers)");
  app.add_option("--log-format", flags.log_format, "text or json (default text)");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error (default info)");
  app.add_option("--log-file", flags.log_file,
                 "file to append the log to, which is renamed at 64 MiB (default standard error)");
  app.add_option("--lease-ms", flags.lease_ms,
                 "milliseconds without contact after which a host is unreachable (default 3000)");
  app.add_option("--lifeline-fd", flags.lifeline_fd, "exit when the other end of this pipe is closed");
  app.add_option("--ready-fd", flags.ready_fd,
                 "when serving, write one line of JSON with the addresses to this descriptor");
  app.add_flag("--version", flags.version, "print the version");
  app.add_flag("--print-lifecycle", flags.print_lifecycle, "print the table of job states of ARCHITECTURE.md");
  app.add_flag("--print-events", flags.print_events, "print the table of events of ARCHITECTURE.md");
  app.add_flag("--print-man", flags.print_man, "print the manual page, for man -l -");
}

// Flags override the file; a flag is checked like the same key of a file, so both have the same ranges and values.
void ApplyFlags(const Flags& flags, v1::CoordinatorConfig& config, Problems& problems) {
  auto set = [&](const char* key, const char* flag, const std::string& yaml) {
    SetYamlKey(key, {.text = yaml, .file_name = flag, .working_directory = WorkingDirectory()}, &config, &problems);
  };
  // Text is set directly: an address or a path is not YAML.
  if (flags.listen) config.set_listen(*flags.listen);
  if (flags.state && !flags.state->empty()) {
    auto path = PathOfUser(*flags.state, WorkingDirectory());
    if (path.ok()) config.set_state(*path);
    if (!path.ok()) problems.AddError({}, "--state", path.status().message());
  }
  if (flags.metrics) config.set_metrics(*flags.metrics);
  if (flags.allow_plaintext) config.set_allow_plaintext(true);
  if (flags.no_webhooks) config.set_webhooks(false);
  if (flags.allow_local_users) config.set_allow_local_users(true);
  if (flags.token_file) config.set_token_file(AbsolutePath(*flags.token_file, WorkingDirectory()));
  if (flags.viewer_token_file) {
    config.set_viewer_token_file(AbsolutePath(*flags.viewer_token_file, WorkingDirectory()));
  }
  if (flags.lease_ms) set("lease_ms", "--lease-ms", absl::StrCat(*flags.lease_ms));
  if (flags.log_format) set("log.format", "--log-format", *flags.log_format);
  if (flags.log_file) config.mutable_log()->set_file(AbsolutePath(*flags.log_file, WorkingDirectory()));
  if (flags.log_level) set("log.level", "--log-level", *flags.log_level);
}

void CheckConfig(const v1::CoordinatorConfig& config, Problems& problems) {
  CheckQueueConfig(config.queue(), &problems);
  if (config.state().empty()) {
    problems.AddError({}, "", "no state folder: set --state DIR, or `state` in the --config file");
  }
  absl::Status listen = CheckListenAddress({.listen = config.listen(), .allow_plaintext = config.allow_plaintext()});
  if (!listen.ok()) problems.AddError({}, "", std::string(listen.message()));
  if (config.allow_local_users() && config.has_token_file()) {
    problems.AddError(
        {}, "",
        "allow_local_users admits every user without a token, but token_file requires a token: set only one of them");
  }
}

CoordinatorOptions MakeOptions(const v1::CoordinatorConfig& config, const Flags& flags, bool user_set_metrics) {
  CoordinatorOptions options;
  options.listen = config.listen();
  options.state = config.state();
  options.metrics = config.metrics();
  options.metrics_may_use_free_port = !user_set_metrics;
  options.page = !flags.no_page;
  options.webhooks = config.webhooks();
  options.allow_plaintext = config.allow_plaintext();
  options.allow_local_users = config.allow_local_users();
  options.token_file = config.token_file();
  options.viewer_token_file = config.viewer_token_file();
  options.lease_ms = config.lease_ms();
  options.finished_jobs = config.finished_jobs();
  options.queue = MakeQueueRules(config.queue());
  const v1::Log& log = config.log();
  options.logging = {.program = "coordinator",
                     .json = log.format() == v1::LOG_FORMAT_JSON,
                     .level = EnumName(*v1::LogLevel_descriptor()->FindValueByNumber(log.level())),
                     .file = {.path = log.file(), .max_bytes = log.max_bytes(), .max_files = log.max_files()}};
  options.lifeline_fd = flags.lifeline_fd;
  options.ready_fd = flags.ready_fd;
  return options;
}

}  // namespace

absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv) {
  CLI::App app("The coordinator of Trainyard: accepts jobs, forms their groups of ranks and supervises them.",
               "trainyard-coordinator");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return CommandLine{.print = app.help(), .options = {}};
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), "; see trainyard-coordinator --help"));
  }
  if (flags.version) return CommandLine{.print = absl::StrCat("trainyard-coordinator ", kVersion, "\n"), .options = {}};
  if (flags.print_lifecycle) return CommandLine{.print = PrintLifecycle(), .options = {}};
  if (flags.print_events) return CommandLine{.print = PrintEvents(), .options = {}};
  if (flags.print_man) {
    ManPageOptions page{.name = app.get_name(), .section = 8, .see_also = {{"trainctl", 1}, {"trainyard-worker", 8}}};
    return CommandLine{.print = ManPage(app, page), .options = {}};
  }

  v1::CoordinatorConfig config;
  if (flags.config) {
    RETURN_IF_ERROR(ReadYamlFile(*flags.config, &config));
  }
  Problems problems;
  ApplyFlags(flags, config, problems);
  const bool user_set_metrics = config.has_metrics();
  ApplyDefaults(&config);
  CheckRules(config, {}, &problems);
  CheckConfig(config, problems);
  RETURN_IF_ERROR(problems.ToStatus());
  return CommandLine{.print = "", .options = MakeOptions(config, flags, user_set_metrics)};
}

}  // namespace trainyard
