// trainctl import: writes the job that a configuration file of Accelerate, DeepSpeed or transformers describes.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_input.h"
#include "client/output.h"
#include "client/text.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "foreign/document.h"
#include "foreign/import.h"
#include "foreign/job_text.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

struct ImportOptions {
  JobOptions job;
  std::string model;
  std::string output;
  bool force = false;
  bool explain = false;
  bool json = false;
};

// The result of an import. `problems` leaves out the errors about missing keys and, if keys are missing, the warnings
// about the incomplete job.
struct ImportedFile {
  foreign::ForeignJob job;
  Problems problems;
};

absl::string_view EffectName(foreign::Effect effect) {
  switch (effect) {
    case foreign::Effect::kSets:
      return "sets";
    case foreign::Effect::kNone:
      return "none";
    case foreign::Effect::kRefused:
      break;
  }
  return "refused";
}

// The value of --model is a folder if it contains a slash or exists as a file or folder, otherwise a preset.
void AddModel(ImportOptions* options) {
  if (options->model.empty()) return;
  const bool is_path = absl::StrContains(options->model, '/') || FileExists(options->model);
  options->job.overrides.push_back(absl::StrCat(is_path ? "train.model.path=" : "train.model.preset=", options->model));
}

absl::StatusOr<ImportedFile> ReadForeign(const JobInput& input) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobText(input));
  const JobFile file = JobFileOf(input, text);
  const absl::optional<foreign::Dialect> dialect = foreign::DialectOf(text);
  if (!dialect.has_value()) {
    Problems problems;
    foreign::ParseDocument(text, file.file_name, &problems);
    RETURN_IF_ERROR(ProblemsStatus(input, problems));
    const std::string why = foreign::WhyNeither(text);
    return absl::InvalidArgumentError(absl::StrCat(
        file.file_name, " ",
        why.empty() ? "is a job file already, or empty; import reads files of Accelerate, DeepSpeed and transformers"
                    : why));
  }
  ImportedFile imported;
  Positions positions;
  Problems all;
  imported.job = foreign::ImportFile(file, *dialect, ReadNamedFile, &all, &positions);
  v1::JobSpec complete = imported.job.spec;
  const size_t num_of_translation = all.all().size();
  foreign::CheckForeignJob(&imported.job, file, &complete, &all, &positions);
  for (size_t i = 0; i < all.all().size(); ++i) {
    const Problem& problem = all.all()[i];
    const auto& missing = imported.job.missing;
    const bool is_missing = i >= num_of_translation && !problem.is_warning &&
                            std::find(missing.begin(), missing.end(), problem.path) != missing.end();
    // A warning about a job without model and ranks would be premature.
    const bool is_premature = i >= num_of_translation && problem.is_warning && !missing.empty();
    if (!is_missing && !is_premature) imported.problems.Add(problem);
  }
  return imported;
}

Json KeysJson(const foreign::ForeignJob& job) {
  Json keys = Json::array();
  for (const foreign::KeyOutcome& key : job.keys) {
    Json sets = Json::array();
    for (const foreign::Setting& each : key.settings) sets.push_back({{"key", each.key}, {"value", each.value}});
    keys.push_back({{"key", key.key},
                    {"value", key.value},
                    {"file", key.position.file},
                    {"line", key.position.line},
                    {"column", key.position.column},
                    {"effect", std::string(EffectName(key.effect))},
                    {"sets", sets},
                    {"note", key.note}});
  }
  return keys;
}

void PrintImportJson(const ImportedFile& imported, const std::string& text) {
  Json problems = Json::array();
  for (const Problem& problem : imported.problems.all()) {
    problems.push_back({{"severity", problem.is_warning ? "warning" : "error"},
                        {"file", problem.position.file},
                        {"line", problem.position.line},
                        {"column", problem.position.column},
                        {"key", problem.path},
                        {"text", problem.text}});
  }
  const Json out = {{"program", std::string(foreign::DialectName(imported.job.dialect))},
                    {"valid", imported.problems.ok()},
                    {"problems", problems},
                    {"missing", imported.job.missing},
                    {"keys", KeysJson(imported.job)},
                    {"notes", imported.job.notes},
                    {"job", imported.problems.ok() ? Json(text) : Json(nullptr)}};
  PrintJson(out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// One row for each key of the file, and one for each further key of the job that it sets.
void PrintExplanation(const foreign::ForeignJob& job) {
  constexpr size_t kCellBytes = 200;
  std::vector<std::vector<std::string>> rows = {{"KEY", "VALUE", "BECOMES", "NOTE"}};
  for (const foreign::KeyOutcome& key : job.keys) {
    std::vector<std::string> settings;
    for (const foreign::Setting& each : key.settings) settings.push_back(absl::StrCat(each.key, ": ", each.value));
    if (settings.empty()) settings.push_back(key.effect == foreign::Effect::kRefused ? "(refused)" : "-");
    for (size_t i = 0; i < settings.size(); ++i) {
      rows.push_back({i == 0 ? Printable(key.key, kCellBytes) : "", i == 0 ? Printable(key.value, kCellBytes) : "",
                      Printable(settings[i], kCellBytes), i == 0 ? Printable(key.note, kCellBytes) : ""});
    }
  }
  Print(Table(rows, OutputColumns()));
}

absl::Status WriteJob(const ImportOptions& options, const std::string& text) {
  if (options.output.empty()) return absl::OkStatus();
  if (FileExists(options.output) && !options.force) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.output, " exists already; give another name, or --force to replace it"));
  }
  return WriteFileAtomically(options.output, text, 0644);
}

absl::Status WriteImported(const ImportOptions& options, const JobInput& input, const ImportedFile& imported) {
  const std::string text = foreign::JobText(imported.job, input.file);
  if (!options.json) {
    for (const std::string& note : imported.job.notes) SayUnprefixed(note);
    for (const Problem& warning : imported.problems.Warnings()) SayUnprefixed(warning.ToString());
  }
  // A file with refused keys is explained, too, so that the user sees which keys are not refused.
  if (options.explain && !options.json) PrintExplanation(imported.job);
  if (options.json) PrintImportJson(imported, text);
  RETURN_IF_ERROR(ProblemsStatus(input, imported.problems));
  RETURN_IF_ERROR(WriteJob(options, text));
  if (!options.json && !options.explain && options.output.empty()) Print(text);
  if (!imported.job.missing.empty()) {
    SayUnprefixed(absl::StrCat("still required: ", absl::StrJoin(imported.job.missing, ", "),
                               "; give them with --set, or write them where the job file says REQUIRED"));
  }
  return OutputStatus();
}

int Import(ImportOptions options) {
  AddModel(&options);
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  const absl::StatusOr<ImportedFile> imported = ReadForeign(input);
  if (!imported.ok()) return ReportStatus(imported.status(), options.json);
  const absl::Status status = WriteImported(options, input, *imported);
  // With --json, the object that was printed already has the problems, so no second object with the error is printed.
  return status.ok() ? kClientDone : Fail(status);
}

}  // namespace

void AddImport(CLI::App& app, const Globals&, Chosen* chosen) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* verb = app.add_subcommand("import", "Write the job that a file of Accelerate or DeepSpeed describes");
  verb->add_option("file", options->job.file,
                   "Accelerate YAML, DeepSpeed JSON, or TrainingArguments JSON with fsdp; - reads standard input")
      ->required();
  verb->add_option("--model", options->model, "The model: a preset, or a folder of transformers")
      ->type_name("PRESET|FOLDER");
  verb->add_option("--set", options->job.overrides,
                   "Set a key of the job, overriding the file: --set train.steps=100 (may be repeated)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("-o,--output", options->output, "Write the job to this file instead of standard output")
      ->type_name("FILE");
  verb->add_flag("--force", options->force, "Replace the file of --output if it exists");
  verb->add_flag("--explain", options->explain, "Print what each key becomes, instead of the job");
  verb->add_flag("--json", options->json, "Print keys, problems and the job as one JSON object");
  verb->footer(
      "Every key of the file sets keys of the job, has no effect for a reason that --explain prints, or is refused\n"
      "with a reason (exit code 2). Keys that the file does not have (model, data, steps) come from --set, or are\n"
      "marked REQUIRED in the job. run, submit and validate also accept such a file directly.\n\n"
      "Examples:\n"
      "  trainctl import configs/imported/deepspeed_zero2.json --explain\n"
      "  trainctl import default_config.yaml --model lab-tiny --set train.steps=100 -o job.yaml");
  verb->callback([options, chosen] {
    *chosen = [options] {
      if (options->output == "json") {  // means --json, as in other verbs
        options->json = true;
        options->output.clear();
      }
      return Import(*options);
    };
  });
}

}  // namespace trainyard::client
