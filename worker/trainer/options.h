// The command line of trainyard-trainer. A daemon starts it with --link; trainctl starts it with `sample`,
// `build-tokens` or --environment; a user starts it with --probe to measure this host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainyard {

struct SampleOptions {
  // A checkpoint; a run folder, which means its newest good one; or a folder that transformers wrote.
  std::string checkpoint;
  std::string tokenizer = {};  // empty: that of the model
  std::string prompt = "\n";
  std::string prompts = {};  // a file of prompts; empty: `prompt`
  int64_t tokens = 300;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1;
  uint64_t seed = 1337;
  int64_t batch = 8;           // prompts that are computed together
  int threads = 0;             // 0: one, or one per core for large models
  std::optional<bool> stream;  // none: true if standard output is a terminal
  bool json = false;
};

struct ProbeOptions {
  bool is_requested = false;
  int64_t matmul_size = 1024;
  int64_t matmul_repeats = 5;
  int64_t all_reduce_bytes = 4 << 20;
  int threads = 0;  // 0: one per core
  bool json = false;
};

// The job is read from standard input: the bytes of a resolved JobSpec.
struct BuildTokensOptions {
  std::string host;  // the name of this host in the cluster, under which the content of the files is recorded
  int threads = 0;   // 0: one per core, at most 16
  bool json = false;
};

struct TrainerOptions {
  enum class Command { kTrain, kSample, kBuildTokens, kProbe, kEnvironment };
  Command command = Command::kTrain;

  std::string link;  // socket of the daemon
  std::string job;
  uint64_t generation = 0;
  uint32_t rank = 0;

  SampleOptions sample;
  BuildTokensOptions build_tokens;
  ProbeOptions probe;
  bool environment = false;
};

// Returns true if the program must continue with `options`; else `exit_code` is the exit code, and all output (help,
// version, errors) was printed.
bool ParseOptions(int argc, const char* const* argv, TrainerOptions& options, int& exit_code);

}  // namespace trainyard
