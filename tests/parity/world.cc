#include "tests/parity/world.h"

#include <ATen/Parallel.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"

extern char** environ;

namespace trainyard {
namespace {

constexpr char kRankFlag[] = "--rank-of-a-world";

std::string ResultPath(const std::string& folder, int rank) { return absl::StrCat(folder, "/result-", rank); }

absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank, int world, KeyValueStore& store,
                                                   const std::string& transport) {
  const bool hostwise = transport == TransportName(Transport::kHostwise);
  return NewGroup({.world_size = world,
                   .rank = rank,
                   .store = &store,
                   .place = absl::StrCat("place ", hostwise ? rank / 2 : 0),
                   .shared_memory = transport != TransportName(Transport::kGloo),
                   .timeout = absl::Minutes(2),
                   .piece_bytes = 4096});
}

absl::StatusOr<std::string> RunRank(int rank, int world, const std::string& folder, const std::string& transport,
                                    const RankMain& main, const std::string& arguments) {
  at::set_num_threads(1);
  FolderStore store(folder);
  ASSIGN_OR_RETURN(auto communicator, Join(rank, world, store, transport));
  RETURN_IF_ERROR(WarmUp(*communicator));
  return main(*communicator, arguments);
}

}  // namespace

void RunAsRankIfRequested(int argc, char** argv, const std::vector<std::pair<std::string, RankMain>>& mains) {
  if (argc != 8 || std::string(argv[1]) != kRankFlag) return;
  signal(SIGPIPE, SIG_IGN);  // as in worker/trainer/main.cc
  int rank = std::atoi(argv[2]), world = std::atoi(argv[3]);
  std::string folder = argv[4];
  absl::StatusOr<std::string> result = absl::NotFoundError(absl::StrCat("unknown main ", argv[5]));
  for (const auto& [name, main] : mains) {
    if (name == argv[5]) result = RunRank(rank, world, folder, argv[7], main, argv[6]);
  }
  if (!result.ok()) std::fprintf(stderr, "rank %d of %d: %s\n", rank, world, result.status().ToString().c_str());
  absl::Status written = WriteFileAtomically(ResultPath(folder, rank), result.ok() ? *result : "");
  // Other ranks may still communicate with this one, so it exits without destroying anything.
  std::fflush(nullptr);
  _exit(result.ok() && written.ok() ? 0 : 1);
}

World::World(int size, const std::string& main, const std::string& arguments, Transport transport) {
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> command = {program, kRankFlag, absl::StrCat(rank), absl::StrCat(size),
                                        folder_, main,      arguments,          TransportName(transport)};
    std::vector<char*> argv;
    for (std::string& argument : command) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ);
    pids_.push_back(pid);
  }
}

World::~World() {
  for (pid_t pid : pids_) {
    if (pid == 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

absl::StatusOr<std::string> World::ResultOf(int rank) {
  if (pids_[rank] == 0)
    return absl::InternalError(absl::StrCat("rank ", rank, " did not start, or its result was read twice"));
  int status = 0;
  waitpid(pids_[rank], &status, 0);
  pids_[rank] = 0;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(
        absl::StrCat("rank ", rank, " exited with wait status ", status, "; see its output above"));
  }
  return ReadFile(ResultPath(folder_, rank));
}

absl::StatusOr<std::vector<std::string>> World::Results() {
  std::vector<std::string> results;
  for (int rank = 0; rank < size(); ++rank) {
    ASSIGN_OR_RETURN(std::string result, ResultOf(rank));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace trainyard
