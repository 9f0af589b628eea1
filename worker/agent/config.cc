#include "worker/agent/config.h"
#include "common/network.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/man_page.h"
#include "common/strict_yaml.h"
#include "common/user.h"
#include "common/user_path.h"
#include "common/version.h"
#include "trainyard/v1/config.pb.h"
#include "worker/agent/inventory.h"

namespace trainyard::agent {
namespace {

// Leaves space for "/ranks/<job>.g<generation>.r<rank>/stdout.log.1" below the state folder.
constexpr size_t kStateBytesMax = limits::kPathBytes - 200;
constexpr size_t kLabelBytesMax = 63;

// The flags as given, before they override the file.
struct Flags {
  std::string file;
  std::string coordinator;
  std::string token_file;
  std::string slots;
  std::string name;
  std::string state;
  std::string log_format;
  std::string log_level;
  std::string log_file;
  std::string metrics;
  std::string health;
  bool metrics_given = false;  // true also for an empty value, which means none
  bool health_given = false;
  std::string snapshots;
  bool snapshots_given = false;
  std::vector<std::string> labels;
  bool allow_plaintext = false;
  bool print_man = false;
};

void Declare(CLI::App& app, Flags& flags, Config& config) {
  app.add_option("--coordinator", flags.coordinator,
                 "host:port of the coordinator, or unix:PATH (required, here or in the file)");
  app.add_option("--token-file", flags.token_file,
                 "file with the token for the coordinator; a coordinator on this machine must belong to this user, to "
                 "root or to the owner of this file (default: the file that a coordinator of this user wrote)");
  app.add_option(
      "--slots", flags.slots,
      "number of trainers that this host runs at the same time (default auto: its GPUs, or 1 if it has none)");
  app.add_option("--name", flags.name, "name of this host in the cluster (default auto: the host name)");
  app.add_option("--state", flags.state,
                 "folder for trainers' output and records (default: one for each coordinator and name, in the user's "
                 "state folder)");
  app.add_option("--metrics", flags.metrics, "host:port of /metrics (default 127.0.0.1:7072); empty: none");
  app.add_option("--health", flags.health,
                 "host:port of the gRPC health service (default 127.0.0.1:7073); empty: none");
  app.add_option("--snapshots", flags.snapshots,
                 "folder in a file system in memory, where copies of saves outlive the trainers (default /dev/shm); "
                 "empty: none");
  app.add_option("--label", flags.labels,
                 "label of this host: rack=r1, switch=s1 or a key of your own; repeat the flag for each key")
      ->take_all();
  app.add_option("--config", flags.file, "YAML file with these settings; flags override it");
  app.add_flag("--allow-plaintext", flags.allow_plaintext, "use plain text also for addresses other than loopback");
  app.add_flag("--adopt-cluster", config.adopt_cluster,
               "let the coordinator of another cluster use this host; trainers of the previous cluster are ended");
  app.add_flag("--stop-trainers", config.stop_trainers, "on SIGTERM, stop the trainers too");
  app.add_option("--lifeline-fd", config.lifeline_fd,
                 "descriptor of a pipe; when the pipe ends, trainers are killed and the daemon exits")
      ->check(CLI::Range(3, 1 << 20));
  app.add_option("--ready-fd", config.ready_fd, "descriptor for one line of JSON, written when trainers can be started")
      ->check(CLI::Range(3, 1 << 20));
  app.add_option("--log-format", flags.log_format, "text or json (default text)");
  app.add_option("--log-level", flags.log_level, "debug, info, warning, error (default info)");
  app.add_option("--log-file", flags.log_file,
                 "file to append the log to, which is renamed at 64 MiB (default standard error)");
  app.add_flag("--print-man", flags.print_man, "print the manual page, for man -l -");
  app.set_version_flag("--version", absl::StrCat("trainyard-worker ", kVersion, " (torch ", kTorchVersion, ")"));
}

std::string OwnManPage(const CLI::App& app) {
  return ManPage(app,
                 {.name = app.get_name(), .section = 8, .see_also = {{"trainctl", 1}, {"trainyard-coordinator", 8}}});
}

// Sets the text to print if the command line asks only for that.
absl::Status Parse(CLI::App& app, int argc, const char* const* argv, Flags& flags, Config* config) {
  try {
    app.parse(argc, argv);
    flags.metrics_given = app.count("--metrics") > 0;
    flags.health_given = app.count("--health") > 0;
    flags.snapshots_given = app.count("--snapshots") > 0;
  } catch (const CLI::CallForVersion& version) {
    config->text_to_print = absl::StrCat(version.what(), "\n");
  } catch (const CLI::CallForHelp&) {
    config->text_to_print = app.help();
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see trainyard-worker --help)"));
  }
  if (flags.print_man) config->text_to_print = OwnManPage(app);
  return absl::OkStatus();
}

// Overrides the file with the flags, value by value, with the same checks.
void ApplyFlags(const Flags& flags, v1::WorkerConfig* config, Problems* problems) {
  auto set = [&](const char* key, const char* flag, const std::string& value) {
    if (value.empty()) return;
    SetYamlKey(key, {.text = value, .file_name = flag, .working_directory = WorkingDirectory()}, config, problems);
  };
  // Text is used unchanged; YAML's rules do not apply to flags.
  if (!flags.coordinator.empty()) config->set_coordinator(flags.coordinator);
  if (!flags.token_file.empty() && flags.token_file != "auto") {
    config->set_token_file(AbsolutePath(flags.token_file, WorkingDirectory()));
  }
  if (!flags.name.empty() && flags.name != "auto") config->set_name(flags.name);
  if (!flags.state.empty() && flags.state != "auto") {
    auto path = PathOfUser(flags.state, WorkingDirectory());
    if (path.ok()) config->set_state(*path);
    if (!path.ok()) problems->AddError({}, "--state", path.status().message());
  }
  if (flags.allow_plaintext) config->set_allow_plaintext(true);
  if (flags.metrics_given) config->set_metrics(flags.metrics);
  if (flags.health_given) config->set_health(flags.health);
  if (flags.snapshots_given) config->set_snapshots(flags.snapshots);
  if (!flags.labels.empty()) config->clear_labels();
  for (const std::string& label : flags.labels) config->add_labels(label);
  set("slots", "--slots", flags.slots);
  set("log.format", "--log-format", flags.log_format);
  set("log.level", "--log-level", flags.log_level);
  if (!flags.log_file.empty()) config->mutable_log()->set_file(AbsolutePath(flags.log_file, WorkingDirectory()));
}

void CheckCoordinator(const v1::WorkerConfig& config, std::vector<std::string>* problems) {
  const std::string& address = config.coordinator();
  if (address.empty()) {
    problems->push_back("coordinator: is required; give --coordinator host:port, or the key in the file");
    return;
  }
  if (SplitUnixAddress(address).has_value()) return;
  absl::optional<HostPort> split = SplitHostPort(address);
  if (!split.has_value()) {
    problems->push_back(
        absl::StrCat("coordinator: expected host:port with a port from 1 to 65535, found '", address, "'"));
    return;
  }
  if (!IsLoopbackHost(split->host) && !config.allow_plaintext()) {
    problems->push_back(absl::StrCat("coordinator: ", address,
                                     " is not on loopback and this version speaks plain text only; give ",
                                     "--allow-plaintext if everyone on that network may read and change what is sent"));
  }
}

void CheckName(const std::string& name, std::vector<std::string>* problems) {
  bool plain = std::all_of(name.begin(), name.end(),
                           [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; });
  if (name.empty() || name.size() > 253 || !plain) {
    problems->push_back(absl::StrCat("name: expected 1 to 253 letters, digits, '-', '_' or '.', found '", name, "'"));
  }
}

bool IsLabelText(absl::string_view text) {
  return !text.empty() && text.size() <= kLabelBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  });
}

void ApplyLabels(const v1::WorkerConfig& file, Config* config, std::vector<std::string>* problems) {
  std::set<std::string> keys;
  for (const std::string& label : file.labels()) {
    std::pair<std::string, std::string> pair = absl::StrSplit(label, absl::MaxSplits('=', 1));
    if (!IsLabelText(pair.first) || !IsLabelText(pair.second)) {
      problems->push_back(absl::StrCat("labels: expected key=value, each of 1 to ", kLabelBytesMax,
                                       " letters, digits, '-', '_', '.' or '/', found '", label, "'"));
    } else if (!keys.insert(pair.first).second) {
      problems->push_back(absl::StrCat("labels: '", pair.first, "' is given twice; give each key once"));
    } else {
      config->labels.push_back(std::move(pair));
    }
  }
}

// Does not check whether the port is in use: only listening shows that.
void CheckListen(const char* key, const std::string& address, bool allow_plaintext,
                 std::vector<std::string>* problems) {
  if (address.empty()) return;
  absl::optional<HostPort> split = SplitHostPort(address, /*port_min=*/0);
  if (!split.has_value()) {
    problems->push_back(
        absl::StrCat(key, ": expected host:port with a port from 0 to 65535, or nothing, found '", address, "'"));
  } else if (!IsLoopbackHost(split->host) && !allow_plaintext) {
    problems->push_back(absl::StrCat(key, ": ", address, " is not on loopback and is served in plain text; give ",
                                     "--allow-plaintext if everyone on that network may read it"));
  }
}

void CheckDescriptor(const char* flag, int fd, std::vector<std::string>* problems) {
  if (fd >= 0 && fcntl(fd, F_GETFD) < 0) problems->push_back(absl::StrCat(flag, ": descriptor ", fd, " is not open"));
}

LoggingOptions LoggingOf(const v1::Log& log) {
  return {.program = "worker",
          .json = log.format() == v1::LOG_FORMAT_JSON,
          .level = EnumName(*v1::LogLevel_descriptor()->FindValueByNumber(log.level())),
          .file = {.path = log.file(), .max_bytes = log.max_bytes(), .max_files = log.max_files()}};
}

absl::Status ToStatus(const std::vector<std::string>& problems) {
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace

StatePlace DefaultState(const std::string& coordinator, const std::string& name) {
  std::string own_root;
  absl::StatusOr<std::string> base = UserStateFolder();
  if (!base.ok()) {
    own_root = absl::StrCat("/var/tmp/trainyard-state-", geteuid());
    base = own_root;
  }
  std::string key = absl::StrCat(coordinator, "-", name);
  std::replace_if(
      key.begin(), key.end(), [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '.'; }, '_');
  return {.path = JoinPath(JoinPath(*base, "trainyard"), key), .own_root = std::move(own_root)};
}

absl::StatusOr<Config> ReadConfig(int argc, const char* const* argv) {
  Config config;
  Flags flags;
  CLI::App app("The worker daemon of Trainyard: runs the trainers of one host.", "trainyard-worker");
  Declare(app, flags, config);
  if (absl::Status parsed = Parse(app, argc, argv, flags, &config); !parsed.ok()) return parsed;
  if (!config.text_to_print.empty()) return config;

  v1::WorkerConfig file;
  std::vector<std::string> problems;
  if (!flags.file.empty()) {
    absl::Status read = ReadYamlFile(flags.file, &file);
    if (!read.ok()) problems.push_back(std::string(read.message()));
  }
  Problems flag_problems;
  ApplyFlags(flags, &file, &flag_problems);
  CheckRules(file, {}, &flag_problems);
  for (const auto& problem : flag_problems.Errors()) problems.push_back(problem.ToString());
  config.metrics_may_use_free_port = !file.has_metrics();
  config.health_may_use_free_port = !file.has_health();
  ApplyDefaults(&file);

  config.coordinator = file.coordinator();
  config.token_file = file.token_file();
  config.slots = file.slots();
  config.name = file.has_name() ? file.name() : ThisHost();
  const StatePlace place =
      file.has_state() ? StatePlace{.path = file.state()} : DefaultState(config.coordinator, config.name);
  config.state = place.path;
  config.own_root = place.own_root;
  config.log_bytes_per_rank = file.log_bytes_per_rank();
  config.logging = LoggingOf(file.log());
  config.programs = BinaryFolder();
  CheckCoordinator(file, &problems);
  config.metrics = file.metrics();
  config.health = file.health();
  config.snapshots = file.snapshots();
  if (!config.snapshots.empty() && config.snapshots[0] != '/') {
    problems.push_back(
        absl::StrCat("snapshots: expected an absolute path, or nothing, found '", config.snapshots, "'"));
  }
  ApplyLabels(file, &config, &problems);
  CheckListen("metrics", config.metrics, file.allow_plaintext(), &problems);
  CheckListen("health", config.health, file.allow_plaintext(), &problems);
  CheckName(config.name, &problems);
  if (config.state.size() > kStateBytesMax) {
    problems.push_back(absl::StrCat("state: the path ", config.state, " has ", config.state.size(),
                                    " bytes; expected at most ", kStateBytesMax, ": give a shorter path with --state"));
  }
  CheckDescriptor("--lifeline-fd", config.lifeline_fd, &problems);
  CheckDescriptor("--ready-fd", config.ready_fd, &problems);
  if (absl::Status status = ToStatus(problems); !status.ok()) return status;
  return config;
}

}  // namespace trainyard::agent
