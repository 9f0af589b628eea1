// trainctl plan: chooses how to divide a job among machines.
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/local_checks.h"
#include "client/output.h"
#include "client/plan_machines.h"
#include "client/plan_view.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "planner/plan_job.h"

namespace trainyard::client {
namespace {

constexpr char kHostsKept[] =
    "resources.hosts and resources.exclude_hosts of the job stay as they are; the plan did not consider them";

struct PlanVerbOptions {
  JobOptions job;
  std::string machines;  // empty: those of the coordinator, or this machine
  uint64_t top = 5;
  bool writes = false;  // --write was given
  std::string write;
  bool force = false;
  bool json = false;
};

struct MadePlan {
  v1::JobSpec spec;
  std::vector<planner::Pool> pools;
  std::vector<std::string> notes;
  planner::JobPlan plan;
};

absl::StatusOr<PlanMachines> FindMachines(const Globals& globals, const PlanVerbOptions& options,
                                          const v1::JobSpec& spec) {
  if (!options.machines.empty()) return MachinesOfFile(options.machines);
  if (globals.coordinator.empty()) return MachinesOfJob(spec, MachineMemoryBytes());
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const v1::ListHostsResponse hosts, ListHosts(*connection));
  return MachinesOfHosts(hosts, spec);
}

absl::StatusOr<MadePlan> MakePlan(const Globals& globals, const PlanVerbOptions& options) {
  if (options.job.file == "-" && options.machines == "-") {
    return absl::InvalidArgumentError("the job and --machines are both -; only one of them can be standard input");
  }
  v1::JobSpec given;  // with the keys that the plan replaces
  JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  input.before_checks = [&given](v1::JobSpec* spec, Positions* positions) {
    given = *spec;
    planner::ResetLayout(spec, positions);
  };
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, /*on_this_machine=*/false));
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  if (!loaded.spec.has_train()) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.file, " is a probe or a command, whose ranks divide nothing that a plan knows"));
  }
  ASSIGN_OR_RETURN(PlanMachines machines, FindMachines(globals, options, given));
  MadePlan made;
  made.spec = std::move(loaded.spec);
  made.notes = std::move(loaded.notes);
  made.notes.insert(made.notes.end(), machines.notes.begin(), machines.notes.end());
  const bool uses_coordinator = options.machines.empty() && !globals.coordinator.empty();
  const bool names_hosts = given.resources().hosts_size() + given.resources().exclude_hosts_size() > 0;
  if (names_hosts && !uses_coordinator) made.notes.emplace_back(kHostsKept);
  made.pools = planner::PoolsOf(machines.machines);
  ASSIGN_OR_RETURN(made.plan, planner::PlanJob(made.spec, made.pools, {.top = options.top}));
  const bool offloads = !made.plan.layouts.empty() && made.plan.layouts[0].layout.offload;
  made.plan.job_keys = planner::LayoutKeysOf(given, offloads);
  return made;
}

// Whether the file of --write can be written, which is known before the plan is made.
absl::Status CheckWrite(const PlanVerbOptions& options) {
  if (!options.writes) {
    return options.force ? absl::InvalidArgumentError("--force replaces the file of --write, which is not given")
                         : absl::OkStatus();
  }
  const std::string& path = options.write;
  if (path.empty()) return absl::InvalidArgumentError("--write is empty; expected the name of a file");
  if (path == "-") {
    return absl::InvalidArgumentError(
        "--write is -, but standard output has the plan; give the name of a file, or take `keys` from --json");
  }
  struct stat st;
  if (stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder; give --write the name of a file"));
  }
  if (!options.force && lstat(path.c_str(), &st) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists already; give another name, or --force to replace it"));
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  int error = 0;
  if (stat(folder.c_str(), &st) != 0) {
    error = errno;
  } else if (!S_ISDIR(st.st_mode)) {
    error = ENOTDIR;
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--write ", path, ": no file can be made in ", folder, ": ", strerror(error)));
}

// Writes the job with the keys of the first layout.
absl::Status WritePlannedJob(const PlanVerbOptions& options, const MadePlan& made) {
  const planner::PlannedLayout& best = made.plan.layouts[0];
  v1::JobSpec spec = planner::WithLayout(made.spec, made.pools[best.pool], best.layout);
  // What was read from files that the job names is read again.
  v1::Train& train = *spec.mutable_train();
  if (train.model().has_path()) train.mutable_model()->clear_config();
  if (train.lora().has_path()) train.mutable_lora()->clear_config();
  const std::string text = absl::StrCat("# Written by `trainctl plan ", options.job.file, "`. ",
                                        planner::LayoutName(best.layout), ".\n", WriteYaml(spec));
  const absl::Status written = WriteFileAtomically(options.write, text, 0644);
  if (written.ok()) return written;
  // The name of the temporary file would only confuse.
  const std::string temporary = absl::StrCat(options.write, ".tmp-", getpid());
  return absl::Status(written.code(),
                      absl::StrCat("the planned job was not written: ",
                                   absl::StrReplaceAll(written.message(), {{temporary, options.write}})));
}

int Plan(const Globals& globals, const PlanVerbOptions& options) {
  if (const absl::Status status = CheckWrite(options); !status.ok()) return ReportStatus(status, options.json);
  const absl::StatusOr<MadePlan> made = MakePlan(globals, options);
  if (!made.ok()) return ReportStatus(made.status(), options.json);
  if (options.json) {
    const nlohmann::ordered_json json = PlanJson(made->plan, made->pools, made->notes);
    PrintJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    for (const std::string& note : made->notes) SayUnprefixed(note);
    Print(PlanText(made->plan, made->pools, OutputColumns()));
  }
  // With --json, the object that was printed says the same, so no second object is printed.
  if (made->plan.layouts.empty()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(NothingFits(made->plan, made->pools),
                     options.writes ? absl::StrCat(" (", options.write, " was not written)") : "")));
  }
  if (options.writes) {
    if (const absl::Status written = WritePlannedJob(options, *made); !written.ok()) return Fail(written);
  }
  return ReportStatus(OutputStatus(), false);
}

}  // namespace

void AddPlan(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<PlanVerbOptions>();
  CLI::App* verb =
      app.add_subcommand("plan", "Choose how to divide a job among machines: strategy, ranks, micro-batch");
  AddJobOptions(*verb, &options->job);
  verb->add_option("--machines", options->machines,
                   "File that describes the machines; without it, the hosts of the coordinator or this machine")
      ->type_name("FILE");
  verb->add_option("--top", options->top, "Layouts to print, the recommended one first")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  CLI::Option* write =
      verb->add_option("--write", options->write, "Write the job with the keys of the first layout to this file")
          ->type_name("FILE");
  verb->add_flag("--force", options->force, "Replace the file of --write if it exists");
  AddJson(*verb, &options->json, "Print the plan as one JSON object");
  verb->footer(
      "Compares layouts by the time of a step that a cost model predicts, keeps those that `trainctl validate`\n"
      "accepts and whose memory fits, and prints the best first, with the reason, and why others were not chosen.\n"
      "Each feature of a layout counts as 1 % of its time, and twice the ranks must save a tenth of it.\n"
      "The plan replaces resources.ranks, resources.device, train.batch.micro and the keys of `parallel` that divide\n"
      "the job; its other keys stay. Nothing is stored: after a change of the machines, run it again.\n\n"
      "For static workloads only: every step is assumed to take the same time on the same ranks. The times rank\n"
      "layouts; measure the first of them. docs/planner.md describes machines files, the cost model and --json.\n"
      "Exit code 1: a failure of this program or machine, 2: the job, the machines file or --write is invalid, or no\n"
      "layout fits, 3: the coordinator cannot be reached.\n\n"
      "Examples:\n"
      "  trainctl plan job.yaml --machines machines.yaml\n"
      "  trainctl --coordinator 127.0.0.1:7070 plan job.yaml --top 3\n"
      "  trainctl plan job.yaml --machines machines.yaml --set train.precision=bf16 --write planned.yaml");
  verb->callback([&globals, options, write, chosen] {
    options->writes = write->count() > 0;
    *chosen = [&globals, options] { return Plan(globals, *options); };
  });
}

}  // namespace trainyard::client
