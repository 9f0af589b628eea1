#include "worker/trainer/sample.h"

#include <ATen/Parallel.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "worker/trainer/generate.h"
#include "worker/trainer/prompts.h"
#include "worker/trainer/sample_output.h"
#include "worker/trainer/text_model.h"

namespace trainyard {
namespace {

// A load that ends within this time shows no progress.
constexpr absl::Duration kQuietLoad = absl::Seconds(1);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);
// A token of a smaller model is too little work to share: threads would mostly wait for each other.
constexpr int64_t kSharedElements = 100'000'000;

std::atomic<bool> interrupted = false;

// The first Ctrl-C ends the texts where they are; a second one ends the process. A closed pipe ends it without a
// message, as it does for other programs that write text. SIGPIPE is ignored at first, because trainctl, which started
// this program, ignores it.
void HandleSampleSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

// Shows on a terminal how much of the weights was read.
class LoadProgress {
 public:
  ~LoadProgress() {
    if (last_drawn_ > absl::InfinitePast()) std::cerr << "\r\x1b[K" << std::flush;
  }
  void Show(int64_t done, int64_t total) {
    const absl::Time now = absl::Now();
    if (!is_terminal_ || now - began_ < kQuietLoad || now - last_drawn_ < kProgressInterval) return;
    last_drawn_ = now;
    std::cerr << "\rloading the weights: " << done * 100 / std::max<int64_t>(total, 1) << " % of " << (total >> 20)
              << " MiB" << std::flush;
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const absl::Time began_ = absl::Now();
  absl::Time last_drawn_ = absl::InfinitePast();
};

absl::StatusOr<std::vector<Prompt>> PromptsOf(const SampleOptions& options, Problems& problems) {
  if (!options.prompts.empty()) return ReadPrompts(options.prompts, problems);
  return std::vector<Prompt>{{.text = options.prompt, .position = {}}};
}

// The tokens of all prompts. Fails with InvalidArgument, which lists all prompts that cannot be used.
absl::StatusOr<std::vector<std::vector<int64_t>>> TokensOfPrompts(const std::vector<Prompt>& prompts,
                                                                  const TextModel& model, Problems& problems) {
  std::vector<std::vector<int64_t>> all;
  for (const Prompt& prompt : prompts) {
    absl::StatusOr<std::vector<int64_t>> tokens = TokensOfPrompt(prompt.text, model);
    if (tokens.ok()) {
      all.push_back(*std::move(tokens));
    } else {
      problems.Add({.is_warning = false,
                    .position = prompt.position,
                    .path = prompt.position.line > 0 ? "" : "--prompt",
                    .text = std::string(tokens.status().message())});
    }
  }
  RETURN_IF_ERROR(problems.ToStatus());
  return all;
}

int ThreadsFor(const Model& model, int given) {
  if (given > 0) return given;
  return model.num_elements() < kSharedElements ? 1
                                                : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

absl::Status Sample(const SampleOptions& options) {
  Problems problems;
  ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, PromptsOf(options, problems));
  ASSIGN_OR_RETURN(TextModel model, OpenTextModel(options.checkpoint, options.tokenizer));
  ASSIGN_OR_RETURN(const std::vector<std::vector<int64_t>> tokens, TokensOfPrompts(prompts, model, problems));
  at::set_num_threads(ThreadsFor(*model.model, options.threads));
  {
    LoadProgress progress;
    RETURN_IF_ERROR(LoadWeights(model, [&](int64_t done, int64_t total) {
      progress.Show(done, total);
      return !interrupted;
    }));
  }
  const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  SampleOutput output(model, prompts, tokens,
                      {.json = options.json,
                       .stream = options.stream.value_or(is_terminal),
                       .headings = !options.prompts.empty() && !options.json,
                       .is_terminal = is_terminal});
  const GenerateOptions generate{
      .tokens = options.tokens,
      .policy = {.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p},
      .seed = options.seed,
      .ends = model.ends,
      .batch = options.batch};
  return Generate(*model.model, tokens, generate, output, [] { return interrupted.load(); });
}

}  // namespace

int RunSample(const SampleOptions& options) {
  HandleSampleSignals();
  const absl::Status status = Sample(options);
  if (interrupted && (status.ok() || absl::IsCancelled(status))) return kClientCancelled;
  if (status.ok()) return kExitDone;
  std::cerr << "sample: " << status.message() << "\n";
  return absl::IsAborted(status) ? kExitFailed : kExitRefused;
}

}  // namespace trainyard
