#include "worker/agent/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "common/status_macros.h"

namespace trainyard::agent {
namespace {

constexpr char kOwnPrefix[] = "TRAINYARD_";
constexpr char kCommandPathDefault[] = "/usr/local/bin:/usr/bin:/bin";
constexpr size_t kErrorFileBytes = 1 << 20;
constexpr size_t kErrorMessageBytes = 1024;

using Variables = std::map<std::string, std::string, std::less<>>;

void Assign(absl::string_view variable, Variables& variables) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(variable, absl::MaxSplits('=', 1));
  variables[parts.first] = parts.second;
}

// The names and their meaning are torchrun's.
void SetRankVariables(const v1::DesiredTrainer& desired, const v1::JobSpec& spec, const CommandOptions& options,
                      Variables& variables) {
  const auto set = [&](const char* name, const auto& value) { variables[name] = absl::StrCat(value); };
  set("RANK", desired.key().rank());
  set("WORLD_SIZE", desired.world_size());
  set("LOCAL_RANK", desired.local_rank());
  set("LOCAL_WORLD_SIZE", desired.local_world_size());
  set("GROUP_RANK", desired.group_rank());
  set("GROUP_WORLD_SIZE", desired.group_world_size());
  set("ROLE_RANK", desired.key().rank());
  set("ROLE_WORLD_SIZE", desired.world_size());
  set("ROLE_NAME", "default");
  const size_t colon = options.master.rfind(':');
  set("MASTER_ADDR", options.master.substr(0, colon));
  set("MASTER_PORT", options.master.substr(colon + 1));
  set("TORCHELASTIC_RESTART_COUNT", desired.restarts());
  set("TORCHELASTIC_MAX_RESTARTS", spec.recovery().max_restarts());
  set("TORCHELASTIC_RUN_ID", desired.key().job_id());
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", options.error_file);
}

// Without these variables, gloo uses the interface to which the host's name resolves, often the loopback interface.
void SetInterface(const v1::DesiredTrainer& desired, const v1::JobSpec& spec, const std::string& interface,
                  Variables& variables) {
  if (interface.empty() || desired.group_world_size() < 2) return;
  const bool is_chosen = !spec.network().interface().empty();
  for (const char* name : {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
    if (is_chosen) variables[name] = interface;
    variables.try_emplace(name, interface);
  }
  // NCCL finds the fastest interfaces itself. Without '=', eth1 would be a prefix that eth10 matches, too.
  if (is_chosen) variables["NCCL_SOCKET_IFNAME"] = absl::StrCat("=", interface);
}

// The client of the link is the Python package (client/python).
void SetLinkVariables(const v1::DesiredTrainer& desired, const CommandOptions& options, Variables& variables) {
  if (options.link.empty()) return;
  variables[kLinkVariable] = options.link;
  variables["TRAINYARD_TOKEN"] = options.token;
  variables["TRAINYARD_JOB_ID"] = desired.key().job_id();
  variables["TRAINYARD_GENERATION"] = absl::StrCat(desired.key().generation());
  variables["TRAINYARD_RANK"] = absl::StrCat(desired.key().rank());
  if (!desired.restart_from().path().empty()) {
    variables["TRAINYARD_LAST_CHECKPOINT"] = desired.restart_from().path();
    variables["TRAINYARD_LAST_CHECKPOINT_STEP"] = absl::StrCat(desired.restart_from().step());
  }
}

Variables MakeVariables(const v1::DesiredTrainer& desired, const v1::JobSpec& spec, const CommandOptions& options) {
  Variables variables = {{"PATH", kCommandPathDefault}};
  for (const char* const* at = options.inherited; at != nullptr && *at != nullptr; ++at) {
    if (!absl::StartsWith(*at, kOwnPrefix)) Assign(*at, variables);
  }
  // torchrun sets the same default. Without it, each rank would start a thread for every core.
  if (desired.local_world_size() > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  if (spec.command().cpus() > 0) variables["OMP_NUM_THREADS"] = absl::StrCat(spec.command().cpus());
  if (const uint32_t threads = spec.resources().threads_per_rank(); threads > 0) {
    variables["OMP_NUM_THREADS"] = absl::StrCat(threads);
  }
  // Without this variable, Python buffers what it writes to a pipe, and a killed process loses buffered output.
  variables.try_emplace("PYTHONUNBUFFERED", "1");
  if (!options.is_check) {
    SetRankVariables(desired, spec, options, variables);
    SetInterface(desired, spec, options.interface, variables);
  }
  for (const std::string& variable : spec.command().env()) Assign(variable, variables);
  if (!options.is_check) SetLinkVariables(desired, options, variables);
  if (!options.is_check && spec.command().has_checkpoint_dir()) {
    variables["TRAINYARD_CHECKPOINT_DIR"] = spec.command().checkpoint_dir();
  }
  return variables;
}

bool IsProgram(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path, const std::string& workdir) {
  if (absl::StrContains(name, '/')) return AbsolutePath(name, workdir);
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    const std::string program = JoinPath(AbsolutePath(std::string(folder.empty() ? "." : folder), workdir), name);
    if (IsProgram(program)) return program;
  }
  return absl::NotFoundError(
      absl::StrCat("cannot start '", name, "': no folder in PATH (", path, ") contains this program"));
}

}  // namespace

absl::StatusOr<LaunchRecord> CommandLaunch(const v1::DesiredTrainer& desired, const CommandOptions& options) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(desired.spec()) || spec.command().argv().empty()) {
    return absl::InvalidArgumentError("the job's command cannot be read by this version of the daemon");
  }
  const Variables variables = MakeVariables(desired, spec, options);
  const std::string& workdir = spec.command().workdir();
  const auto& argv = options.is_check ? spec.command().check().argv() : spec.command().argv();
  if (argv.empty()) return absl::InvalidArgumentError("the command of the job has no program");
  LaunchRecord launch;
  ASSIGN_OR_RETURN(launch.program, FindProgram(argv.Get(0), variables.find("PATH")->second, workdir));
  launch.arguments.assign(argv.begin(), argv.end());
  for (const auto& [name, value] : variables) launch.variables.push_back(absl::StrCat(name, "=", value));
  launch.log_bytes = options.log_bytes;
  launch.workdir = workdir;
  launch.grace = absl::Seconds(spec.command().grace_s());
  launch.cpus = options.cpus;
  launch.memory_bytes = spec.command().memory_bytes();
  return launch;
}

std::string ReadErrorFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kErrorFileBytes);
  if (!text.ok()) return "";
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) return "";
  const auto& message = json["message"];
  // Exceptions are objects with a message and a call stack; some programs write the text alone.
  const auto& inner = message.is_object() && message.contains("message") ? message["message"] : message;
  if (!inner.is_string()) return "";
  const std::string whole = inner.get<std::string>();
  return ValidUtf8(whole.substr(0, whole.find('\n')), kErrorMessageBytes);
}

}  // namespace trainyard::agent
