// trainctl plan: chooses how to divide a job among machines.
#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

struct PlanVerbOptions {
  JobOptions job;
  std::string machines;  // empty: those of the coordinator, or this machine
  uint64_t top = 5;
  std::string write;  // empty: none
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
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, /*on_this_machine=*/false));
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  if (!loaded.spec.has_train()) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.file, " is a probe or a command, whose ranks divide nothing that a plan knows"));
  }
  ASSIGN_OR_RETURN(PlanMachines machines, FindMachines(globals, options, loaded.spec));
  MadePlan made;
  made.spec = std::move(loaded.spec);
  made.notes = std::move(loaded.notes);
  made.notes.insert(made.notes.end(), machines.notes.begin(), machines.notes.end());
  made.pools = planner::PoolsOf(machines.machines);
  ASSIGN_OR_RETURN(made.plan, planner::PlanJob(made.spec, made.pools, {.top = options.top}));
  return made;
}

// Writes the job with the keys of the first layout.
absl::Status WritePlannedJob(const PlanVerbOptions& options, const MadePlan& made) {
  if (struct stat st; !options.force && lstat(options.write.c_str(), &st) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(options.write, " exists already; give another name, or --force to replace it"));
  }
  const planner::PlannedLayout& best = made.plan.layouts[0];
  v1::JobSpec spec = planner::WithLayout(made.spec, made.pools[best.pool], best.layout);
  // What was read from files that the job names is read again.
  v1::Train& train = *spec.mutable_train();
  if (train.model().has_path()) train.mutable_model()->clear_config();
  if (train.lora().has_path()) train.mutable_lora()->clear_config();
  const std::string text = absl::StrCat("# Written by `trainctl plan ", options.job.file, "`. ",
                                        planner::LayoutName(best.layout), ".\n", WriteYaml(spec));
  return WriteFileAtomically(options.write, text, 0644);
}

int Plan(const Globals& globals, const PlanVerbOptions& options) {
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
  if (made->plan.layouts.empty()) return Fail(absl::InvalidArgumentError(NothingFits(made->plan, made->pools)));
  if (!options.write.empty()) {
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
  verb->add_option("--top", options->top, "Layouts to print, the fastest first")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  verb->add_option("--write", options->write, "Write the job with the keys of the first layout to this file")
      ->type_name("FILE");
  verb->add_flag("--force", options->force, "Replace the file of --write if it exists");
  AddJson(*verb, &options->json, "Print the plan as one JSON object");
  verb->footer(
      "Compares layouts by the time of a step that a cost model predicts, keeps those that `trainctl validate`\n"
      "accepts and whose memory fits, and prints the fastest first, with the reason, and why others were not chosen.\n"
      "The plan replaces resources.ranks, resources.device, train.batch.micro and the keys of `parallel` that divide\n"
      "the job; its other keys stay. Nothing is stored: after a change of the machines, run it again.\n\n"
      "For static workloads only: every step is assumed to take the same time on the same ranks. The times rank\n"
      "layouts; measure the first of them. docs/planner.md describes machines files and the cost model.\n"
      "Exit code 2: the job or the machines file is invalid, or no layout fits.\n\n"
      "Examples:\n"
      "  trainctl plan job.yaml --machines machines.yaml\n"
      "  trainctl --coordinator 127.0.0.1:7070 plan job.yaml --top 3\n"
      "  trainctl plan job.yaml --machines machines.yaml --set train.precision=bf16 --write planned.yaml");
  verb->callback([&globals, options, chosen] { *chosen = [&globals, options] { return Plan(globals, *options); }; });
}

}  // namespace trainyard::client
