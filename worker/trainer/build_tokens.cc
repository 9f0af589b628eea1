#include "worker/trainer/build_tokens.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/collectives/single_communicator.h"
#include "worker/data/token_cache.h"
#include "worker/link/spec_config.h"
#include "worker/trainer/rank_data.h"

namespace trainyard {
namespace {

// 16 times the limit of a spec before it is resolved (kSpecBytesMax in spec/prepare.h).
constexpr uint64_t kSpecBytes = 16 << 20;
// The largest default number of threads. Each thread holds a piece of the text and its tokens in memory, and with more
// threads most of them would wait for the disk.
constexpr unsigned kMostThreads = 16;

std::atomic<bool> build_interrupted = false;
// Set when the build begins to check for signals. While files are only read, a signal ends the process immediately.
std::atomic<bool> build_checks_signals = false;

void HandleBuildSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    if (!build_checks_signals || build_interrupted) _exit(kClientCancelled);
    build_interrupted = true;
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is reported like a full disk
}

absl::StatusOr<StartOrder> ReadOrder(const BuildTokensOptions& options) {
  ASSIGN_OR_RETURN(const std::string spec, ReadFile("/dev/stdin", kSpecBytes));
  StartOrder order;
  order.generation = 1;  // in a later generation, TokenizeData would not verify the chunks that exist
  order.host = options.host;
  ASSIGN_OR_RETURN(order.config, ConfigFromSpec(spec));
  return order;
}

// Checks that the token cache can be created next to the run folder. Otherwise the job would create it inside the run
// folder, where no other run looks for it.
absl::Status CheckRoot(const StartOrder& order) {
  const std::vector<std::string> roots = TokenCacheRoots(order.config.checkpoint_dir);
  const absl::Status made = MakeCacheRoot(roots[RootNextToRun(roots)]);
  if (made.ok()) return made;
  return absl::FailedPreconditionError(absl::StrCat("the token cache is next to checkpoint.dir (",
                                                    order.config.checkpoint_dir, "), but ", made.message(),
                                                    "; set checkpoint.dir to a folder whose parent you may write to"));
}

std::vector<const DataSet*> SetsOf(const RankData& data) {
  std::vector<const DataSet*> sets;
  for (const DataSet* set : {&data.train, &data.held_out}) {
    if (set->plan != nullptr) sets.push_back(set);
  }
  return sets;
}

void PrintText(const RankData& data) {
  if (data.train.plan == nullptr) std::cout << data.train.key << ": the job reads these files without a token cache\n";
  for (const DataSet* set : SetsOf(data)) {
    const TokenCacheUse& cache = set->cache;
    std::cout << set->key << ": " << Plural(static_cast<uint64_t>(cache.num_tokens), "token") << ", "
              << Plural(static_cast<uint64_t>(cache.num_samples), "sample");
    if (cache.folder.empty()) {
      std::cout << ", read in place and checked\n";
    } else {
      std::cout << (cache.is_reused ? ", already in " : ", written to ") << cache.folder << "\n";
    }
  }
}

// Returns one line of ASCII without control characters, so that a terminal interprets none of it.
std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void PrintAsJson(const RankData& data) {
  nlohmann::ordered_json caches = nlohmann::ordered_json::array();
  for (const DataSet* set : SetsOf(data)) {
    const TokenCacheUse& cache = set->cache;
    caches.push_back({{"key", set->key},
                      {"folder", cache.folder},
                      {"reused", cache.is_reused},
                      {"chunks", cache.num_chunks},
                      {"tokens", cache.num_tokens},
                      {"samples", cache.num_samples}});
  }
  std::cout << JsonText({{"caches", caches}});
}

absl::Status BuildTokens(const BuildTokensOptions& options) {
  ASSIGN_OR_RETURN(const StartOrder order, ReadOrder(options));
  RankData data;
  RETURN_IF_ERROR(OpenData(order, data, std::cerr));
  if (data.train.plan != nullptr) {
    RETURN_IF_ERROR(CheckRoot(order));
  }
  const std::unique_ptr<Communicator> alone = NewSingleCommunicator();
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  const TokenizeOptions tokenize{.threads = options.threads > 0 ? options.threads : static_cast<int>(cores),
                                 .must_leave = [] {
                                   build_checks_signals = true;
                                   return build_interrupted.load();
                                 }};
  RETURN_IF_ERROR(TokenizeData(order, tokenize, *alone, data, std::cerr));
  errno = 0;
  options.json ? PrintAsJson(data) : PrintText(data);
  std::cout.flush();
  if (std::cout.good()) return absl::OkStatus();
  const std::string cause = errno != 0 ? strerror(errno) : "unknown cause";
  return absl::UnknownError(absl::StrCat("standard output cannot be written: ", cause));
}

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kCancelled:
      return kClientCancelled;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return kExitRefused;
    default:
      return kExitFailed;
  }
}

}  // namespace

int RunBuildTokens(const BuildTokensOptions& options) {
  HandleBuildSignals();
  const absl::Status status = BuildTokens(options);
  const int exit_code = ExitCodeFor(status);
  if (status.ok()) return exit_code;
  if (options.json) {
    const std::string text(status.message());
    std::cout << JsonText({{"event", "error"}, {"text", text}, {"exit_code", exit_code}}) << std::flush;
  }
  std::cerr << "tokenize: " << status.message() << std::endl;
  return exit_code;
}

}  // namespace trainyard
