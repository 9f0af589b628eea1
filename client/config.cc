// trainctl config: asks what a job shall do and writes its job file, or a file for Accelerate.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/bounded_program.h"
#include "client/commands.h"
#include "client/config_dialogue.h"
#include "client/config_draft.h"
#include "client/config_files.h"
#include "client/config_text.h"
#include "client/exit_code.h"
#include "client/job_input.h"
#include "client/line_input.h"
#include "client/local_checks.h"
#include "client/output.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kFilesLimit = absl::Seconds(2);
constexpr absl::Duration kGpusLimit = absl::Seconds(15);
constexpr char kStandardOutput[] = "-";

struct ConfigOptions {
  std::string part;  // empty: everything
  std::string answers;
  std::vector<std::string> overrides;
  std::string output;
  bool yes = false;
  bool force = false;
  bool elsewhere = false;
  bool accelerate = false;
  bool json = false;
};

// Prints the files that were found. Runs in a process of its own, which is killed if a file system hangs.
absl::Status PrintFoundFiles(const std::string& part) {
  if (part != "files") return absl::InvalidArgumentError(absl::StrCat("--part: expected files, not ", part));
  const FoundFiles found = FindFiles(".");
  const Json json = {{"scripts", found.scripts}, {"data", found.data}, {"models", found.models}};
  PrintRaw(absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n"));
  return absl::OkStatus();
}

// Returns the object that another process of trainctl prints; null if that process failed: its facts are then unknown.
Json PartOf(const std::vector<std::string>& arguments, absl::Duration limit) {
  std::vector<std::string> command = {JoinPath(BinaryFolder(), "trainctl")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<std::string> text = OutputOfProgram(command, limit);
  return text.ok() ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
}

std::vector<std::string> TextsOf(const Json& json, const char* key) {
  std::vector<std::string> texts;
  if (!json.is_object() || !json.contains(key) || !json[key].is_array()) return texts;
  for (const Json& each : json[key]) {
    if (each.is_string()) texts.push_back(each.get<std::string>());
  }
  return texts;
}

ConfigFacts ReadConfigFacts(const Globals& globals, const ConfigOptions& options) {
  ConfigFacts facts;
  facts.working_directory = WorkingDirectory();
  facts.elsewhere = options.elsewhere || !globals.coordinator.empty();
  facts.accelerate = options.accelerate;
  facts.cores = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  facts.memory_bytes = facts.elsewhere ? 0 : MachineMemoryBytes();
  const Json files = PartOf({"config", "--part", "files"}, kFilesLimit);
  facts.found = {
      .scripts = TextsOf(files, "scripts"), .data = TextsOf(files, "data"), .models = TextsOf(files, "models")};
  const Json gpus = PartOf({"env", "--part", "gpus"}, kGpusLimit);
  if (!gpus.is_object() || !gpus.contains("devices") || !gpus["devices"].is_array()) return facts;
  for (const Json& device : gpus["devices"]) {
    const Json major = device.is_object() ? device.value("compute_major", Json(0)) : Json(0);
    const uint32_t compute = major.is_number_unsigned() ? major.get<uint32_t>() : 0;
    facts.gpu_compute_major = facts.gpus == 0 ? compute : std::min(facts.gpu_compute_major, compute);
    ++facts.gpus;
  }
  return facts;
}

absl::StatusOr<ConfigInput> ReadConfigInput(const ConfigOptions& options) {
  ConfigInput input = {.text = "", .file_name = options.answers, .overrides = options.overrides};
  if (options.answers.empty()) return input;
  absl::StatusOr<std::string> text = ReadRegularFile(options.answers, kYamlBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read --answers: ", text.status().message()));
  }
  input.text = *std::move(text);
  return input;
}

// Makes the draft without asking. Fails with a list of the questions; if `yes`, only of those without a default.
absl::StatusOr<Draft> DraftWithDefaults(const ConfigInput& input, const ConfigFacts& facts, bool yes) {
  Draft draft = MakeDraft(input, facts, {});
  RETURN_IF_ERROR(draft.problems.ToStatus());
  std::vector<std::string> lines;
  for (const AskedQuestion& question : draft.questions) {
    const bool is_unanswered = std::count(draft.unanswered.begin(), draft.unanswered.end(), question.id) > 0;
    if (yes && !is_unanswered) continue;
    const std::string keys = question.keys.empty() ? "command or train" : absl::StrJoin(question.keys, " or ");
    lines.push_back(absl::StrCat("  ", keys, ": ", question.text,
                                 question.suggestion.empty() ? "" : absl::StrCat(" [", question.suggestion, "]")));
  }
  if (lines.empty()) return draft;
  return absl::InvalidArgumentError(absl::StrCat(
      yes ? "these questions have no default; answer them with --set or --answers:\n"
          : "standard input is no terminal, so these questions cannot be asked; answer them with --set or --answers, "
            "or add --yes for the defaults in brackets:\n",
      absl::StrJoin(lines, "\n")));
}

absl::StatusOr<Draft> Ask(const ConfigInput& input, const ConfigFacts& facts, const ConfigOptions& options,
                          bool* replace) {
  LineInput lines;
  const LineReader read_line = [&lines](const std::string& prompt) { return lines.Read(prompt); };
  const LineShower show = [](absl::string_view text) { SayUnprefixed(text); };
  if (options.output != kStandardOutput && !options.force && FileExists(options.output)) {
    // This question comes first, so that no answers are lost.
    ASSIGN_OR_RETURN(*replace, AskYesOrNo(absl::StrCat(options.output, " exists. Replace it?"), read_line, show));
    if (!*replace) {
      return absl::AlreadyExistsError(absl::StrCat(options.output, " exists; give another name with -o"));
    }
  }
  return AskQuestions(input, facts, read_line, show);
}

void ReportWritten(const ConfigOptions& options, const Draft& draft, const std::string& text) {
  if (options.json) {
    Json warnings = Json::array();
    for (const Problem& warning : draft.problems.Warnings()) warnings.push_back(warning.Message());
    const Json file = options.output == kStandardOutput ? Json(nullptr) : Json(options.output);
    PrintJson(Json{{"file", file}, {"text", text}, {"warnings", warnings}}.dump(-1, ' ', false,
                                                                                Json::error_handler_t::replace));
    return;
  }
  for (const Problem& warning : draft.problems.Warnings()) SayUnprefixed(absl::StrCat("warning: ", warning.Message()));
  if (options.output == kStandardOutput) return Print(text);
  if (options.accelerate) {
    SayUnprefixed(absl::StrCat("wrote ", options.output, "; use it with\n  trainctl launch --config_file ",
                               options.output, " train.py\n  accelerate launch --config_file ", options.output,
                               " train.py"));
    if (draft.spec.resources().device() == v1::DEVICE_CPU && draft.spec.resources().ranks() > 1) {
      SayUnprefixed("Accelerate itself starts several CPU processes only with mpirun (its key mpirun_config).");
    }
    return;
  }
  SayUnprefixed(absl::StrCat("wrote ", options.output, "; run it with\n  trainctl run ", options.output));
}

absl::Status Config(const Globals& globals, ConfigOptions options) {
  if (!options.part.empty()) return PrintFoundFiles(options.part);
  if (options.output.empty()) options.output = options.accelerate ? "accelerate.yaml" : "job.yaml";
  const bool is_file = options.output != kStandardOutput;
  ASSIGN_OR_RETURN(const ConfigInput input, ReadConfigInput(options));
  const ConfigFacts facts = ReadConfigFacts(globals, options);
  const bool asks = !options.yes && isatty(STDIN_FILENO) != 0;
  bool replace = options.force;
  absl::StatusOr<Draft> draft =
      asks ? Ask(input, facts, options, &replace) : DraftWithDefaults(input, facts, options.yes);
  RETURN_IF_ERROR(draft.status());
  ASSIGN_OR_RETURN(const std::string text, options.accelerate ? AccelerateText(*draft) : JobFileText(*draft));
  if (is_file) {
    RETURN_IF_ERROR(WriteNewFile(options.output, text, replace));
  }
  ReportWritten(options, *draft, text);
  return OutputStatus();
}

int RunConfig(const Globals& globals, const ConfigOptions& options) {
  const absl::Status status = Config(globals, options);
  if (!absl::IsCancelled(status)) return status.ok() ? kClientDone : ReportStatus(status, options.json);
  WriteNow(stderr, "\n");
  Say("cancelled; nothing was written");
  return kClientCancelled;
}

}  // namespace

void AddConfig(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<ConfigOptions>();
  CLI::App* verb = app.add_subcommand("config", "Ask questions and write a job file, or a file for Accelerate");
  verb->add_option("-o,--output", options->output,
                   "The file to write; - prints it. Default: job.yaml, or accelerate.yaml with --accelerate")
      ->type_name("FILE");
  verb->add_option("--answers", options->answers, "A job file with some of the keys; asks only about the others")
      ->type_name("FILE");
  verb->add_option("--set", options->overrides, "Set a key of the job, so that it is not asked about (may be repeated)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("-y,--yes,--non-interactive", options->yes, "Take the defaults instead of asking");
  verb->add_flag("--force", options->force,
                 "Replace FILE if it exists; if it is a link, replace the link and not its target");
  verb->add_flag(
      "--elsewhere", options->elsewhere,
      "The job runs on other machines: files that are missing here cause warnings. Implied by --coordinator");
  verb->add_flag("--accelerate", options->accelerate, "Write a file that Accelerate loads");
  verb->add_flag("--json", options->json, "Print the name of the file, its text and the warnings as one JSON object");
  verb->add_option("--part", options->part)->group("");
  verb->footer(
      "Looks for scripts, data, models and GPUs here, and asks about the rest. ? explains a question, < returns to "
      "the\n"
      "one before. After each answer the whole job is checked as `trainctl validate` does. Nothing is written before\n"
      "the last answer; Ctrl-C ends with exit code 130, the end of the input with 2. Questions and messages are "
      "written\n"
      "to standard error.\n\n"
      "Examples:\n"
      "  trainctl config\n"
      "  trainctl config --yes --set train.data.text=[corpus.txt] --set train.steps=100 -o job.yaml\n"
      "  trainctl config --accelerate --yes --set resources.ranks=4 --set parallel.data=fsdp");
  verb->callback(
      [&globals, options, chosen] { *chosen = [&globals, options] { return RunConfig(globals, *options); }; });
}

}  // namespace trainyard::client
