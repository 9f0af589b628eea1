// trainctl sample: generates text with a checkpoint. The model runs in trainyard-trainer, which replaces this process.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct SampleOptions {
  std::string folder;
  std::string prompt = "\n";
  uint32_t tokens = 300;
  double temperature = 0.8;
  uint32_t top_k = 0;
  uint64_t seed = 1337;
  bool json = false;
};

// The trainer accepts a run folder or a checkpoint, verifies it, and falls back to an older good one.
absl::StatusOr<std::string> ChooseFolder(const Globals& globals, const std::string& given) {
  if (!given.empty()) {
    ASSIGN_OR_RETURN(const std::string folder, RunFolderOf(globals, given));
    return AbsolutePath(folder, WorkingDirectory());
  }
  std::string root = DefaultRunRoot(WorkingDirectory());
  std::string newest = NewestRun(root, "");
  if (!newest.empty()) return newest;
  return absl::NotFoundError(absl::StrCat("there is no run in ", root, "; name a run folder or a checkpoint"));
}

absl::Status Sample(const Globals& globals, const SampleOptions& options) {
  ASSIGN_OR_RETURN(std::string checkpoint, ChooseFolder(globals, options.folder));
  std::string program = JoinPath(BinaryFolder(), "trainyard-trainer");
  std::vector<std::string> arguments = {program,         "sample",
                                        "--checkpoint",  checkpoint,
                                        "--prompt",      options.prompt,
                                        "--tokens",      absl::StrCat(options.tokens),
                                        "--temperature", absl::StrCat(options.temperature),
                                        "--top-k",       absl::StrCat(options.top_k),
                                        "--seed",        absl::StrCat(options.seed)};
  if (options.json) arguments.push_back("--json");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return ErrnoStatus(errno, absl::StrCat("cannot start ", program));
}

}  // namespace

void AddSample(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* verb = app.add_subcommand("sample", "Generate text with a trained model");
  verb->add_option(
      "folder,--checkpoint", options->folder,
      "Checkpoint, or run folder or job (its newest checkpoint); default: the newest run in ./trainyard-runs");
  verb->add_option("--prompt", options->prompt, "Text to continue");
  verb->add_option("--tokens", options->tokens, "Number of tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  verb->add_option("--temperature", options->temperature,
                   "Sampling temperature; 0: always choose the most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--top-k", options->top_k, "Sample from the K most likely tokens; 0: from all")
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "Random seed")->capture_default_str();
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Examples:\n"
      "  trainctl sample\n"
      "  trainctl sample trainyard-runs/stdlib-gpt-k3x7q2ab --prompt 'template <typename' --tokens 300");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Sample(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
