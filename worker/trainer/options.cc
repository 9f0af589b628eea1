#include "worker/trainer/options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace trainyard {

namespace {

CLI::Option* DeclareProbe(CLI::App& app, ProbeOptions& probe) {
  CLI::Option* probe_flag = app.add_flag("--probe", probe.is_requested,
                                         "Times a matrix product, and all-reduces over loopback, on this host; "
                                         "`trainctl doctor` requests the same measurements from pairs of hosts");
  app.add_option("--matmul-size", probe.matmul_size, "Number of rows and columns of the fp32 matrices to multiply")
      ->check(CLI::Range(16, 65536))
      ->capture_default_str()
      ->needs(probe_flag);
  app.add_option("--matmul-repeats", probe.matmul_repeats, "Number of products to time; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->needs(probe_flag);
  app.add_option("--all-reduce-bytes", probe.all_reduce_bytes, "Bytes in the larger of the two all-reduces")
      ->check(CLI::Range(4096, 1 << 30))
      ->capture_default_str()
      ->needs(probe_flag);
  app.add_option("--threads", probe.threads, "Number of threads of the matrix product; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->needs(probe_flag);
  app.add_flag("--json", probe.json, "With --probe: print one JSON object instead of text")->needs(probe_flag);
  return probe_flag;
}

CLI::App* DeclareSample(CLI::App& app, SampleOptions& sample) {
  CLI::App* command = app.add_subcommand("sample", "Prints text that a model generates");
  command
      ->add_option("--checkpoint", sample.checkpoint,
                   "A checkpoint, a run folder (its newest checkpoint is used), or a folder that transformers wrote")
      ->required();
  command->add_option("--tokenizer", sample.tokenizer, "File or folder of the tokenizer; bytes: one token per byte")
      ->default_str("that of the model");
  CLI::Option* prompt = command->add_option("--prompt", sample.prompt, "Text to continue")->default_str("a line feed");
  command
      ->add_option("--prompts", sample.prompts,
                   "File with a prompt in each line; with .jsonl, an object {\"prompt\": ...} in each line")
      ->excludes(prompt);
  command->add_option("--tokens", sample.tokens, "Number of tokens to generate for each prompt")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--temperature", sample.temperature, "Divisor of the scores; 0: choose the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", sample.top_k, "Choose among the K most likely tokens only; 0: among all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--top-p", sample.top_p, "Choose among the most likely tokens that together have this probability")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  command->add_option("--seed", sample.seed, "Seed of the choices; the same seed gives the same text")
      ->capture_default_str();
  command->add_option("--batch", sample.batch, "Number of prompts that are computed together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--threads", sample.threads, "Number of threads; 0: one, or for large models one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  CLI::Option* json = command->add_flag("--json", sample.json, "Print one JSON object per prompt instead of text");
  CLI::Option* stream = command->add_flag_callback(
      "--stream", [&sample] { sample.stream = true; }, "Print text as it is generated; the default on a terminal");
  command
      ->add_flag_callback(
          "--no-stream", [&sample] { sample.stream = false; }, "Print each text once it is complete")
      ->excludes(stream);
  stream->excludes(json);
  return command;
}

CLI::App* DeclareBuildTokens(CLI::App& app, BuildTokensOptions& options) {
  CLI::App* command = app.add_subcommand(
      "build-tokens", "Builds the token cache of a job, whose resolved JobSpec is read from standard input");
  command->add_option("--host", options.host, "The name of this host in the cluster that runs the job")->required();
  command->add_option("--threads", options.threads, "Number of threads; 0: one per core, at most 16")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", options.json, "Print one JSON object instead of text");
  return command;
}

}  // namespace

bool ParseOptions(int argc, const char* const* argv, TrainerOptions& options, int& exit_code) {
  CLI::App app("Trains one rank of a Trainyard job. Started by trainyard-worker, which sends it the job over a socket.",
               "trainyard-trainer");
  app.set_version_flag("--version", absl::StrCat("trainyard-trainer ", kVersion, " (LibTorch ", kTorchVersion, ")"));
  CLI::Option* link = app.add_option("--link", options.link, "Unix socket of the daemon");
  app.add_option("--job", options.job, "Id of the job")->needs(link);
  app.add_option("--generation", options.generation, "Generation of the job")->needs(link);
  app.add_option("--rank", options.rank, "Rank in this generation of the job")->needs(link);

  CLI::Option* probe_flag = DeclareProbe(app, options.probe);
  probe_flag->excludes(link);

  app.add_flag("--environment", options.environment,
               "Prints the versions of the libraries and the kernels that ranks on this host use, as one JSON object: "
               "what `trainctl env` requests")
      ->excludes(link)
      ->excludes(probe_flag);

  const CLI::App* sample = DeclareSample(app, options.sample);
  const CLI::App* build_tokens = DeclareBuildTokens(app, options.build_tokens);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  options.command = sample->parsed()             ? TrainerOptions::Command::kSample
                    : build_tokens->parsed()     ? TrainerOptions::Command::kBuildTokens
                    : options.probe.is_requested ? TrainerOptions::Command::kProbe
                    : options.environment        ? TrainerOptions::Command::kEnvironment
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
