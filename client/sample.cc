// trainctl sample: generates text with a checkpoint. The model runs in trainyard-trainer, which replaces this process.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/process.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct SampleOptions {
  std::string folder;
  std::string tokenizer;
  std::string prompt = "\n";
  std::string prompts;
  uint32_t tokens = 300;
  double temperature = 0.8;
  uint32_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 1337;
  uint32_t batch = 8;
  uint32_t threads = 0;
  std::optional<bool> stream;
  bool json = false;
};

// The trainer accepts a run folder or a checkpoint, verifies it, and falls back to an older good one. It also accepts a
// folder that transformers wrote.
absl::StatusOr<std::string> ChooseFolder(const Globals& globals, const std::string& given) {
  if (!given.empty()) {
    ASSIGN_OR_RETURN(const std::string folder, RunFolderOf(globals, given));
    return AbsolutePath(folder, WorkingDirectory());
  }
  std::string root = DefaultRunRoot(WorkingDirectory());
  std::string newest = NewestRun(root, "", /*needs_checkpoint=*/true);
  if (!newest.empty()) return newest;
  return absl::NotFoundError(
      absl::StrCat("there is no run with a checkpoint in ", root, "; name a run folder or a checkpoint"));
}

absl::StatusOr<std::vector<std::string>> TrainerArguments(const Globals& globals, const SampleOptions& options) {
  ASSIGN_OR_RETURN(const std::string folder, ChooseFolder(globals, options.folder));
  std::vector<std::string> arguments = {"sample",
                                        "--checkpoint",
                                        folder,
                                        "--tokens",
                                        absl::StrCat(options.tokens),
                                        "--temperature",
                                        absl::StrFormat("%.17g", options.temperature),
                                        "--top-k",
                                        absl::StrCat(options.top_k),
                                        "--top-p",
                                        absl::StrFormat("%.17g", options.top_p),
                                        "--seed",
                                        absl::StrCat(options.seed),
                                        "--batch",
                                        absl::StrCat(options.batch),
                                        "--threads",
                                        absl::StrCat(options.threads)};
  if (options.prompts.empty()) {
    arguments.insert(arguments.end(), {"--prompt", options.prompt});
  } else {
    arguments.insert(arguments.end(), {"--prompts", options.prompts});
  }
  if (!options.tokenizer.empty()) arguments.insert(arguments.end(), {"--tokenizer", options.tokenizer});
  if (options.stream.has_value()) arguments.push_back(*options.stream ? "--stream" : "--no-stream");
  if (options.json) arguments.push_back("--json");
  return arguments;
}

absl::Status Sample(const Globals& globals, const SampleOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> arguments, TrainerArguments(globals, options));
  return BecomeTrainer(arguments);
}

// Adds the options for the number of tokens and for the choice of each token.
void AddSamplingOptions(CLI::App& verb, SampleOptions& options) {
  verb.add_option("--tokens", options.tokens, "Number of tokens to generate for each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  verb.add_option("--temperature", options.temperature, "Sampling temperature; 0: always choose the most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  verb.add_option("--top-k", options.top_k, "Sample from the K most likely tokens; 0: from all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  verb.add_option("--top-p", options.top_p, "Sample from the most likely tokens that together have this probability")
      ->capture_default_str()
      ->check(CLI::Range(1e-9, 1.0));
  verb.add_option("--seed", options.seed, "Random seed")->capture_default_str();
}

}  // namespace

void AddSample(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* verb = app.add_subcommand("sample", "Generate text with a trained model");
  verb->add_option("folder,--checkpoint", options->folder,
                   "Checkpoint; run folder or job (its newest checkpoint); RUN/best (its checkpoint with the "
                   "lowest evaluation loss); or folder of a model that transformers wrote; default: the newest run "
                   "with a checkpoint in ./trainyard-runs");
  CLI::Option* prompt = verb->add_option("--prompt", options->prompt, "Text to continue");
  verb->add_option("--prompts", options->prompts,
                   "File with a prompt in each line; with .jsonl, an object {\"prompt\": ...} in each line")
      ->type_name("FILE")
      ->excludes(prompt);
  verb->add_option("--tokenizer", options->tokenizer,
                   "File or folder of the tokenizer, if it is not the model's; bytes: one token per byte");
  AddSamplingOptions(*verb, *options);
  verb->add_option("--batch", options->batch, "Number of prompts that are computed together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  verb->add_option("--threads", options->threads, "Number of threads; 0: one, or for large models one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  CLI::Option* stream = verb->add_flag_callback(
      "--stream", [options] { options->stream = true; }, "Print text as it is generated; the default on a terminal");
  verb->add_flag_callback(
          "--no-stream", [options] { options->stream = false; }, "Print each text once it is complete")
      ->excludes(stream);
  AddJson(*verb, &options->json, "One JSON object per prompt, in the order of the prompts");
  stream->excludes(verb->get_option("--json"));
  verb->footer(
      "A text ends at the model's end-of-text token, or after --tokens. It depends on its prompt, the seed and the\n"
      "options, not on the other prompts. Ctrl-C prints the text so far and exits with 130.\n\n"
      "Examples:\n"
      "  trainctl sample\n"
      "  trainctl sample trainyard-runs/stdlib-gpt-k3x7q2ab --prompt 'template <typename' --tokens 300\n"
      "  trainctl sample models/llama --prompts prompts.txt --temperature 0 --json");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Sample(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
