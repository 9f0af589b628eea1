#include "worker/trainer/options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace trainyard {

namespace {

CLI::Option* DeclareProbe(CLI::App& app, ProbeOptions& probe) {
  CLI::Option* timed = app.add_flag("--probe", probe.asked,
                                    "Times a matrix product, and all-reduces over loopback, on this host: what "
                                    "`trainctl doctor` asks pairs of hosts for");
  app.add_option("--matmul-size", probe.matmul_size, "Rows and columns of the square fp32 matrices")
      ->check(CLI::Range(16, 65536))
      ->capture_default_str()
      ->needs(timed);
  app.add_option("--matmul-repeats", probe.matmul_repeats, "Products that are timed; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->needs(timed);
  app.add_option("--all-reduce-bytes", probe.all_reduce_bytes, "Size of the larger all-reduce")
      ->check(CLI::Range(4096, 1 << 30))
      ->capture_default_str()
      ->needs(timed);
  app.add_option("--threads", probe.threads, "Threads of the matrix product; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->needs(timed);
  app.add_flag("--json", probe.json, "With --probe: one JSON object instead of text")->needs(timed);
  return timed;
}

}  // namespace

bool ParseOptions(int argc, const char* const* argv, TrainerOptions& options, int& exit_code) {
  CLI::App app("Trains one rank of a Trainyard job. Started by trainyard-worker, which gives it the job over a socket.",
               "trainyard-trainer");
  app.set_version_flag("--version", absl::StrCat("trainyard-trainer ", kVersion, " (LibTorch ", kTorchVersion, ")"));
  CLI::Option* link = app.add_option("--link", options.link, "Unix socket of the daemon");
  app.add_option("--job", options.job, "Id of the job")->needs(link);
  app.add_option("--generation", options.generation, "Generation of the group of ranks")->needs(link);
  app.add_option("--rank", options.rank, "Rank in that group")->needs(link);

  CLI::Option* timed = DeclareProbe(app, options.probe);
  timed->excludes(link);

  // For the program itself, which can use one kind of kernels only.
  app.add_flag("--time-products{plain},--time-products-with-lever{lever}", options.products)->group("");

  SampleOptions& sample = options.sample;
  CLI::App* command = app.add_subcommand("sample", "Prints text made by the model of a checkpoint");
  command
      ->add_option("--checkpoint", sample.checkpoint, "A run folder (its newest checkpoint is taken) or a checkpoint")
      ->required();
  command->add_option("--prompt", sample.prompt, "Text to go on from")->default_str("a line feed");
  command->add_option("--tokens", sample.tokens, "Tokens to make")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--temperature", sample.temperature, "0: the likeliest token each time")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", sample.top_k, "Choose among the likeliest K only; 0: among all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_option("--seed", sample.seed, "Of the choices; the same seed gives the same text")
      ->capture_default_str();
  command->add_flag("--json", sample.json, "One JSON object instead of text");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  options.command = command->parsed()           ? TrainerOptions::Command::kSample
                    : options.probe.asked       ? TrainerOptions::Command::kProbe
                    : !options.products.empty() ? TrainerOptions::Command::kTimeProducts
                                                : TrainerOptions::Command::kTrain;
  if (options.command == TrainerOptions::Command::kTrain && (options.link.empty() || options.job.empty())) {
    std::cerr << "trainyard-trainer is started by trainyard-worker (--link SOCKET --job ID --generation G --rank R); "
                 "to train, use trainctl run, and to see text from a checkpoint, trainctl sample\n";
    exit_code = 2;
    return false;
  }
  return true;
}

}  // namespace trainyard
