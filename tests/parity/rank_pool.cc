#include "tests/parity/rank_pool.h"

#include <ATen/Parallel.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "tests/parity/stores.h"

extern char** environ;

namespace trainyard {
namespace {

constexpr char kRankFlag[] = "--rank-of-a-pool";
constexpr int kSocket = 3;  // the descriptor of the socket between a rank process and its pool

// A message is its length in 8 bytes, followed by its text; the answer is "ok ..." or "error ...".
bool Send(int socket, const std::string& text) {
  uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
  for (size_t sent = 0; sent < bytes.size();) {
    ssize_t n = send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveExactly(int socket, char* out, size_t count, absl::Time deadline) {
  while (count > 0) {
    pollfd waits{.fd = socket, .events = POLLIN, .revents = 0};
    const int64_t left = std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0);
    if (poll(&waits, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) <= 0) return false;
    ssize_t n = recv(socket, out, count, 0);
    if (n <= 0) return false;
    out += n;
    count -= static_cast<size_t>(n);
  }
  return true;
}

bool Receive(int socket, std::string& text, absl::Time deadline) {
  uint64_t length = 0;
  if (!ReceiveExactly(socket, reinterpret_cast<char*>(&length), sizeof length, deadline)) return false;
  text.resize(length);
  return ReceiveExactly(socket, text.data(), length, deadline);
}

int RanksOf(const MeshShape& shape) { return shape.pp * shape.dp_replicate * shape.dp_shard * shape.tp; }

// Runs a case, given as "PP REPLICATE SHARD TP TRANSPORT FOLDER MAIN ARGUMENTS...".
absl::StatusOr<std::string> Serve(int rank, const std::string& command,
                                  const std::vector<std::pair<std::string, PoolMain>>& mains) {
  std::istringstream in(command);
  MeshShape shape;
  int transport = 0;
  std::string folder, main, arguments;
  in >> shape.pp >> shape.dp_replicate >> shape.dp_shard >> shape.tp >> transport >> folder >> main;
  std::getline(in >> std::ws, arguments, '\0');
  const int world = RanksOf(shape);
  ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(shape, world));
  FolderStore store(folder);
  GroupOptions options{.world_size = world, .rank = rank, .store = &store};
  options.timeout = absl::Minutes(2);
  options.shared_memory = transport != static_cast<int>(PoolTransport::kGloo);
  options.place = transport == static_cast<int>(PoolTransport::kTwoHosts) && rank >= world / 2 ? "b" : "a";
  options.piece_bytes = 4096;  // so small that every tensor is sent in several pieces
  ASSIGN_OR_RETURN(std::unique_ptr<MeshGroups> groups, JoinMesh(mesh, /*reshard_to=*/0, options));
  for (const auto& group : groups->owned) {
    RETURN_IF_ERROR(WarmUp(*group));
  }
  for (const auto& [name, function] : mains) {
    if (name != main) continue;
    absl::StatusOr<std::string> result =
        function({.mesh = mesh, .groups = *groups, .rank = rank, .options = options}, arguments);
    // No rank may destroy a group while a peer still uses it.
    if (result.ok()) {
      RETURN_IF_ERROR(groups->world->Barrier()->Wait());
    }
    return result;
  }
  return absl::NotFoundError(absl::StrCat("this program has no main named ", main));
}

}  // namespace

void RunAsPoolRankIfRequested(int argc, char** argv, const std::vector<std::pair<std::string, PoolMain>>& mains) {
  if (argc != 3 || std::string(argv[1]) != kRankFlag) return;
  at::set_num_threads(1);
  const int rank = std::atoi(argv[2]);
  std::string command;
  while (Receive(kSocket, command, absl::InfiniteFuture())) {
    absl::StatusOr<std::string> result = Serve(rank, command, mains);
    std::string answer = result.ok() ? "ok " + *result : absl::StrCat("error ", result.status().ToString());
    if (!Send(kSocket, answer)) break;
  }
  std::fflush(nullptr);
  _exit(0);
}

absl::Status RankPool::Start(int world) {
  if (!folder_.has_value()) folder_.emplace();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (int rank = static_cast<int>(processes_.size()); rank < world; ++rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return absl::InternalError("cannot create a socket pair");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kSocket);
    std::string flag = kRankFlag, number = absl::StrCat(rank), path = program;
    char* argv[] = {path.data(), flag.data(), number.data(), nullptr};
    Process process{.socket = ends[0]};
    const int error = posix_spawn(&process.pid, program.c_str(), &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    processes_.push_back(process);
    if (error != 0) return absl::InternalError(absl::StrCat("rank ", rank, " cannot be started: error ", error));
  }
  return absl::OkStatus();
}

void RankPool::Stop() {
  for (const Process& process : processes_) {
    close(process.socket);
    if (process.pid == 0) continue;
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
  processes_.clear();
  folder_.reset();
}

PoolNumbers NumbersIn(const std::string& result) {
  PoolNumbers numbers;
  std::istringstream in(result);
  for (std::string line; std::getline(in, line);) {
    numbers[line.substr(0, line.find('='))] = std::stoll(line.substr(line.find('=') + 1));
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string>> RankPool::Run(const PoolCase& pool_case) {
  const int world = RanksOf(pool_case.mesh);
  if (world < 1 || world > size_)
    return absl::InvalidArgumentError(absl::StrCat("a pool of ", size_, " processes cannot run ", world, " ranks"));
  absl::StatusOr<std::vector<std::string>> results = absl::UnknownError("not run");
  if (absl::Status started = Start(world); started.ok()) {
    results = RunOnce(pool_case, world);
  } else {
    results = started;
  }
  if (!results.ok()) Stop();
  return results;
}

absl::StatusOr<std::vector<std::string>> RankPool::RunOnce(const PoolCase& pool_case, int world) {
  const std::string folder = *folder_ / absl::StrCat(++num_cases_);
  std::filesystem::create_directory(folder);
  const absl::Time deadline = absl::Now() + pool_case.limit;
  const MeshShape& shape = pool_case.mesh;
  const std::string command =
      absl::StrCat(shape.pp, " ", shape.dp_replicate, " ", shape.dp_shard, " ", shape.tp, " ",
                   static_cast<int>(pool_case.transport), " ", folder, " ", pool_case.main, " ", pool_case.arguments);
  for (int rank = 0; rank < world; ++rank) {
    if (!Send(processes_[rank].socket, command)) {
      return absl::InternalError(absl::StrCat("rank ", rank, " has exited"));
    }
  }
  std::vector<std::string> results(world);
  absl::Status status;
  for (int rank = 0; rank < world; ++rank) {
    std::string answer;
    if (!Receive(processes_[rank].socket, answer, deadline)) {
      const bool late = absl::Now() >= deadline;
      status.Update(late ? absl::DeadlineExceededError(absl::StrCat("rank ", rank, " gave no answer within ",
                                                                    absl::FormatDuration(pool_case.limit)))
                         : absl::InternalError(absl::StrCat("rank ", rank, " died; see its output above")));
      break;
    }
    if (answer.rfind("ok ", 0) == 0) {
      results[rank] = answer.substr(3);
    } else {
      status.Update(absl::InternalError(absl::StrCat("rank ", rank, ": ", answer)));
    }
  }
  RETURN_IF_ERROR(status);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return results;
}

}  // namespace trainyard
