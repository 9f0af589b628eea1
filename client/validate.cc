// trainctl validate: reports all problems of a job without running it.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_input.h"
#include "client/layout_view.h"
#include "client/output.h"
#include "client/run_folder.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "spec/memory_plan.h"
#include "spec/prepare.h"
#include "spec/validate.h"

namespace trainyard::client {
namespace {

struct ValidateOptions {
  JobOptions job;
  bool resolved = false;
  bool memory = false;
  bool json = false;
};

struct MemoryLine {
  const char* name;
  uint64_t bytes;
  const char* what;
};

std::vector<MemoryLine> LinesOf(const MemoryPlan& plan) {
  return {{"parameters", plan.parameters, "weights for computation"},
          {"gathered", plan.gathered, "sharded parameters and gradients while they are gathered"},
          {"gradients", plan.gradients, "sums of gradients"},
          {"optimizer", plan.optimizer, "moments, and the optimizer's own copy of the parameters, if it has one"},
          {"activations", plan.activations, "stored for backward"},
          {"scores", plan.scores, "scores of the vocabulary and their gradient"},
          {"links", plan.links, "activations and gradients that come from other stages"},
          {"device_total", plan.device_total(), "the sum of these"},
          {"host", plan.host, "offloaded state, in host memory"}};
}

// A job whose device is auto gets a GPU if its hosts have GPUs, which is not known here.
std::string DeviceText(const v1::JobSpec& spec) {
  if (spec.resources().has_device()) return "";
  return "Planned for a CPU; resources.device is auto, so the ranks use GPUs if their hosts have one for each. Give\n"
         "--set resources.device=cuda to plan for a GPU.\n";
}

nlohmann::ordered_json MemoryJson(const MemoryPlan& plan) {
  nlohmann::ordered_json out;
  for (const MemoryLine& line : LinesOf(plan)) out[absl::StrCat(line.name, "_bytes")] = line.bytes;
  return out;
}

void PrintMemory(const PreparedJob& prepared) {
  const bool has_stages = prepared.spec.parallel().pipeline().stages() > 1;
  std::vector<std::vector<std::string>> rows = {
      {has_stages ? "MEMORY OF A RANK OF THE LARGEST STAGE" : "MEMORY OF A RANK", "ABOUT", ""}};
  for (const MemoryLine& line : LinesOf(PlanMemory(prepared.spec))) {
    std::string name = line.name;
    std::replace(name.begin(), name.end(), '_', ' ');
    rows.push_back({name, BytesText(line.bytes), line.what});
  }
  Print(absl::StrCat(CountParameters(prepared.spec.train().model()), " parameters, ",
                     Plural(prepared.spec.resources().ranks(), "rank"), "\n", Table(rows),
                     "Not included: the libraries themselves, and copies of the state during a save.\n",
                     DeviceText(prepared.spec)));
}

void PrintReport(const LoadedJob& loaded, const PreparedJob* prepared) {
  const Problems& problems = loaded.problems;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Problem& problem : problems.all()) {
    list.push_back({{"severity", problem.is_warning ? "warning" : "error"},
                    {"file", problem.position.file},
                    {"line", problem.position.line},
                    {"column", problem.position.column},
                    {"key", problem.path},
                    {"text", problem.text}});
  }
  nlohmann::ordered_json out = {{"valid", problems.ok()}, {"errors", problems.error_count()}, {"problems", list}};
  if (!loaded.notes.empty()) out["notes"] = loaded.notes;
  if (prepared != nullptr) {
    nlohmann::ordered_json decisions = nlohmann::ordered_json::array();
    for (const v1::ResolvedKey& decision : prepared->decisions) {
      decisions.push_back({{"key", decision.key()}, {"value", decision.value()}, {"reason", decision.reason()}});
    }
    out["decisions"] = decisions;
    out["resolved"] = WriteYaml(prepared->spec);
    if (prepared->spec.has_train()) {
      out["layout"] = LayoutJson(prepared->spec);
      out["memory"] = MemoryJson(PlanMemory(prepared->spec));
      out["memory_device"] = prepared->spec.resources().device() == v1::DEVICE_CUDA ? "cuda" : "cpu";
    }
  }
  PrintJson(out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void PrintResolved(const PreparedJob& prepared) {
  Print(WriteYaml(prepared.spec));
  for (const v1::ResolvedKey& decision : prepared.decisions) {
    Print(absl::StrCat("# ", decision.key(), " = ", decision.value(), "  (", decision.reason(), ")\n"));
  }
}

int Validate(const Globals& globals, const ValidateOptions& options) {
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  // The files of the job need not be on this machine if a coordinator is configured (they are on its hosts), or if only
  // the plan of the memory is requested.
  auto loaded = LoadJob(input, /*on_this_machine=*/globals.coordinator.empty() && !options.memory);
  if (!loaded.ok()) return ReportStatus(loaded.status(), options.json);
  std::unique_ptr<PreparedJob> prepared;
  if (loaded->problems.ok()) {
    auto job = PrepareJob(loaded->spec, {.job_id = "<id>", .default_run_root = DefaultRunRoot(WorkingDirectory())});
    if (job.ok()) {
      prepared = std::make_unique<PreparedJob>(*std::move(job));
    } else {
      loaded->problems.AddError({}, "", job.status().message());
    }
  }
  absl::Status status = ProblemsStatus(input, loaded->problems);
  if (options.json) {
    PrintReport(*loaded, prepared.get());
    return ExitCodeOf(status);
  }
  PrintNotesAndWarnings(*loaded);
  if (!status.ok()) return Fail(status);
  if (options.memory && !prepared->spec.has_train()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(input.file, " is a probe or a command, for which no memory is planned")));
  }
  if (options.memory) PrintMemory(*prepared);
  if (options.resolved) {
    PrintResolved(*prepared);
  } else if (options.memory) {
    return kClientDone;
  } else {
    const size_t warnings = loaded->problems.Warnings().size();
    Print(absl::StrCat(input.file, " is a valid job",
                       warnings == 0 ? "" : absl::StrCat(", with ", Plural(warnings, "warning")), "\n",
                       LayoutText(prepared->spec)));
  }
  return kClientDone;
}

}  // namespace

void AddValidate(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<ValidateOptions>();
  CLI::App* verb = app.add_subcommand("validate", "Check a job file without running it");
  AddJobOptions(*verb, &options->job);
  verb->add_flag("--resolved", options->resolved, "Print the job with all defaults and decisions filled in");
  verb->add_flag("--memory", options->memory,
                 "Print an estimate of each rank's memory; the files of the job may be on other machines");
  AddJson(*verb, &options->json, "Print problems (and the resolved job) as one JSON object");
  verb->footer(
      "Reports all problems, each with file, line and column. Exit code 0: valid, 2: invalid. If stages or tensor\n"
      "ranks divide the model, also prints which ranks hold what, and the schedule with its bubble.\n\n"
      "Examples:\n"
      "  trainctl validate configs/jobs/stdlib.yaml\n"
      "  trainctl validate job.yaml --set resources.ranks=4 --resolved\n"
      "  trainctl validate job.yaml --memory --set train.model.preset=llama3-8b --set parallel.data=fsdp");
  verb->callback(
      [&globals, options, chosen] { *chosen = [&globals, options] { return Validate(globals, *options); }; });
}

}  // namespace trainyard::client
