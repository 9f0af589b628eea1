// trainctl launch: runs a script on several ranks as torchrun does, with torchrun's flags. Without a coordinator it
// starts private daemons; with one, the script runs on the hosts of the cluster.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/command_line_errors.h"
#include "client/commands.h"
#include "client/launch_config.h"
#include "client/launch_flags.h"
#include "client/launch_progress.h"
#include "client/output.h"
#include "client/run_job.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "spec/validate.h"

namespace trainyard::client {
namespace {

constexpr char kDriverGpus[] = "/proc/driver/nvidia/gpus";
constexpr char kVisibleGpus[] = "CUDA_VISIBLE_DEVICES";

struct LaunchOptions {
  LaunchFlags flags;
  std::shared_ptr<AccelerateFlags> accelerate = std::make_shared<AccelerateFlags>();
  Globals globals;  // those given after `launch`
  RunJobOptions run;
};

// The GPUs that a script on this machine sees.
uint32_t CountGpus() {
  if (const char* visible = getenv(kVisibleGpus); visible != nullptr) {
    return CountVisibleGpus(visible);
  }
  uint32_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(kDriverGpus, error), end; !error && at != end; at.increment(error))
    ++count;
  return count;
}

// Returns OK, or why the script cannot be read here.
absl::Status CheckScript(const LaunchFlags& flags) {
  if (flags.module || flags.no_python || flags.program.empty()) return absl::OkStatus();
  const std::string& script = flags.program.front();
  std::error_code error;
  const auto status = std::filesystem::status(script, error);
  // A folder or an archive with a __main__.py is a program, too.
  const bool is_folder = std::filesystem::is_directory(status);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("the script ", script, " does not exist in ", WorkingDirectory()));
  }
  if (is_folder && !FileExists(JoinPath(script, "__main__.py"))) {
    return absl::InvalidArgumentError(absl::StrCat("the script ", script, " is a folder without __main__.py"));
  }
  if (access(script.c_str(), R_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the script ", script, " cannot be read by this user"));
  }
  return absl::OkStatus();
}

int Launch(const Globals& given, LaunchOptions& options) {
  Globals globals = given;
  if (!options.globals.coordinator.empty()) globals.coordinator = options.globals.coordinator;
  if (!options.globals.token_file.empty()) globals.token_file = options.globals.token_file;
  globals.allow_plaintext = globals.allow_plaintext || options.globals.allow_plaintext;
  if (options.flags.standalone && options.globals.coordinator.empty()) {
    if (!globals.coordinator.empty()) Say("--standalone: the coordinator " + globals.coordinator + " is not used");
    globals.coordinator.clear();
  }
  const bool on_cluster = !globals.coordinator.empty();
  if (absl::Status status = ApplyAccelerateFlags(*options.accelerate, WorkingDirectory(), &options.flags);
      !status.ok()) {
    return ReportStatus(status, options.run.json);
  }
  absl::StatusOr<LaunchPlan> plan =
      PlanLaunch(options.flags, {.on_cluster = on_cluster,
                                 .json = options.run.json,
                                 .cores = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))),
                                 .gpus = CountGpus(),
                                 .workdir = WorkingDirectory()});
  if (!plan.ok()) return ReportStatus(plan.status(), options.run.json);
  if (absl::Status script = CheckScript(options.flags); !on_cluster && !script.ok()) {
    return ReportStatus(script, options.run.json);
  }
  for (const std::string& note : plan->notes) Say(note);
  if (!plan->log_dir.empty()) plan->log_dir = AbsolutePath(plan->log_dir, WorkingDirectory());
  options.run.output_folder = plan->log_dir;
  options.run.load = [&plan](bool) -> absl::StatusOr<LoadedJob> {
    LoadedJob job;
    job.spec = plan->spec;
    ValidateJob(job.spec, job.positions, &job.problems);
    RETURN_IF_ERROR(job.problems.ToStatus());
    return job;
  };
  if (!options.run.json) options.run.make_progress = [&plan] { return NewLaunchProgress(*plan); };
  return RunJob(globals, options.run);
}

// Adds flags for what the coordinator does anyway. They are accepted, and a note names those that were given.
void AddFlagsWithoutEffect(CLI::App& verb, const std::shared_ptr<LaunchOptions>& options) {
  constexpr const char* kFlags[] = {
      "--rdzv-backend,--rdzv_backend", "--rdzv-endpoint,--rdzv_endpoint",       "--rdzv-id,--rdzv_id",
      "--rdzv-conf,--rdzv_conf",       "--master-addr,--master_addr",           "--master-port,--master_port",
      "--local-addr,--local_addr",     "--monitor-interval,--monitor_interval", "--start-method,--start_method",
  };
  for (const absl::string_view names : kFlags) {
    const std::string name(names.substr(0, names.find(',')));
    verb.add_option_function<std::string>(
        std::string(names), [options, name](const std::string&) { options->flags.without_effect.push_back(name); },
        "No effect: the coordinator forms the group");
  }
}

// torchrun reads each flag that is not given from a variable: --nproc-per-node from PET_NPROC_PER_NODE. Kubeflow's
// PyTorchJob sets these variables. Call it before Accelerate's flags are added, which torchrun does not know.
void ReadEnvironmentOfTorchrun(CLI::App& verb) {
  for (CLI::Option* option : verb.get_options([&verb](const CLI::Option* one) { return one != verb.get_help_ptr(); })) {
    std::string variable = absl::StrCat("PET_", absl::AsciiStrToUpper(option->get_lnames().front()));
    std::replace(variable.begin(), variable.end(), '-', '_');
    option->envname(variable);
  }
}

void AddFlags(CLI::App& verb, const std::shared_ptr<LaunchOptions>& options) {
  LaunchFlags& flags = options->flags;
  verb.add_option("--nnodes", flags.nnodes,
                  "The number of hosts, or MIN:MAX for a script that can continue with fewer or more ranks. More than "
                  "1 needs --coordinator. Default 1");
  verb.add_option("--nproc-per-node,--nproc_per_node", flags.nproc_per_node,
                  "Ranks on each host: a number, gpu, cpu, or auto (GPUs if there are any, else CPUs); with "
                  "--coordinator a number. Default 1");
  verb.add_option("--max-restarts,--max_restarts", flags.max_restarts,
                  "How often all ranks are started again after a failure. Default 0");
  verb.add_flag("--standalone", flags.standalone, "Run on this machine, even if TRAINYARD_COORDINATOR is set");
  verb.add_flag("-m,--module", flags.module, "Run a Python module, as python -m does");
  verb.add_flag("--no-python,--no_python", flags.no_python, "Run the program itself, not with Python");
  verb.add_option("--log-dir,--log_dir", flags.log_dir,
                  "Also write the output to DIR/<job>/attempt_<n>/<rank>/{stdout,stderr}.log");
  verb.add_option("-r,--redirects", flags.redirects,
                  "Do not show stdout (1), stderr (2) or both (3), of all ranks or of some (0:1,1:3)");
  verb.add_option("-t,--tee", flags.tee, "Show streams that --redirects would hide; values as for --redirects");
  verb.add_option("--local-ranks-filter,--local_ranks_filter", flags.local_ranks_filter,
                  "Show the output of these ranks of each host only: 0,1");
  verb.add_option("--role", flags.role, "The role of the ranks: a prefix of their output, and ROLE_NAME");
  verb.add_option("--node-rank,--node_rank", flags.node_rank, "Must be 0: launch runs once for all hosts");
  verb.add_option("--priority", flags.priority, "How urgent the job is, 0 to 100; default 50");
  verb.add_option("--namespace", flags.name_space, "The namespace whose quotas the job uses; default `default`");
  AddFlagsWithoutEffect(verb, options);
  ReadEnvironmentOfTorchrun(verb);
  AddAccelerateFlags(verb, options->accelerate, &options->flags);
}

}  // namespace

std::vector<std::string> WithoutLaunchSeparator(const CLI::App& app, std::vector<std::string> arguments) {
  const CLI::App* reader = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      if (reader != &app) arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(i));
      return arguments;
    }
    if (argument.empty() || argument[0] != '-') {
      if (reader != &app || argument != "launch") return arguments;  // the script, or another verb
      reader = app.get_subcommand("launch");
      continue;
    }
    const CLI::Option* option = reader->get_option_no_throw(argument);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;  // its value
  }
  return arguments;
}

void AddLaunch(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* verb =
      app.add_subcommand("launch", "Run a script on several ranks, with the flags of torchrun or Accelerate");
  // Arguments after the script belong to the script. trainctl's global flags may be given after `launch`, too.
  verb->prefix_command()->fallthrough(false);
  AddFlags(*verb, options);
  constexpr char kGlobal[] = "The same as this option before `launch`";
  verb->add_option("--coordinator", options->globals.coordinator, kGlobal)->type_name("HOST:PORT");
  verb->add_option("--token-file", options->globals.token_file, kGlobal)->type_name("FILE");
  verb->add_flag("--allow-plaintext", options->globals.allow_plaintext, kGlobal);
  AddJson(*verb, &options->run.json, "Print one JSON object per line on standard output");
  AddReconnectFor(*verb, &options->run.reconnect);
  verb->footer(
      "The script and its arguments follow the flags. Each rank gets the environment of torchrun: RANK, WORLD_SIZE,\n"
      "MASTER_ADDR, TORCHELASTIC_* and so on. If a rank fails, the others are ended (SIGTERM, after 30 s SIGKILL) and\n"
      "all are started again, at most --max-restarts times. Ctrl-C ends everything; a second Ctrl-C kills it\n"
      "immediately, or with --coordinator ends trainctl without waiting.\n\n"
      "Examples:\n"
      "  trainctl launch --nproc-per-node 2 train.py --lr 0.1\n"
      "  trainctl launch --nproc_per_node=auto --max-restarts=3 -m package.train\n"
      "  trainctl launch --config_file accelerate.yaml train.py\n"
      "  trainctl --coordinator head:7070 launch --nnodes 2 --nproc-per-node 8 train.py");
  verb->callback([&globals, options, verb, chosen] {
    options->flags.program = verb->remaining();
    options->flags.known = FlagsOf(*verb);
    options->accelerate->has_ranks = verb->count("--nproc-per-node") > 0;
    options->accelerate->has_hosts = verb->count("--nnodes") > 0;
    *chosen = [&globals, options] { return Launch(globals, *options); };
  });
}

}  // namespace trainyard::client
