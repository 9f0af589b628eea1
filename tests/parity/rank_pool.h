// Rank processes that live for many cases: starting a process and loading LibTorch costs more than a short training
// run. Each case uses the first `world` of them, with groups of its own. A rank that dies, hangs or fails ends its
// case; the next one meets new processes.
//
//   int main(argc, argv) { BecomePoolRankIfAsked(argc, argv, {{"train", TrainMain}}); ... }
//   RankPool pool(4);
//   auto results = pool.Run({.mesh = {.dp_shard = 3}, .main = "train", .arguments = training.ToString()});
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/unit/temporary_folder.h"
#include "worker/collectives/group.h"
#include "worker/mesh/mesh.h"

namespace trainyard {

// What the ranks of a case meet by. kTwoHosts: the first half on one host, the second on another.
enum class PoolTransport { kSharedMemory, kGloo, kTwoHosts };

// What a rank of a pool works with in one case.
struct PoolRank {
  const Mesh& mesh;
  MeshGroups& groups;
  int rank = 0;
};
using PoolMain = std::function<absl::StatusOr<std::string>(const PoolRank& rank, const std::string& arguments)>;

// A program whose tests use a pool calls this first in main(). When it is a rank, serves until the pool is gone and
// ends the process.
void BecomePoolRankIfAsked(int argc, char** argv, const std::vector<std::pair<std::string, PoolMain>>& mains);

struct PoolCase {
  MeshShape mesh;  // data axes; their product is the number of ranks
  PoolTransport transport = PoolTransport::kSharedMemory;
  std::string main;
  std::string arguments;
  absl::Duration limit = absl::Minutes(2);
};

// What a rank tells in lines of "name=number".
using PoolNumbers = std::map<std::string, int64_t>;
PoolNumbers NumbersIn(const std::string& result);

class RankPool {
 public:
  explicit RankPool(int size) : size_(size) {}
  ~RankPool() { Stop(); }

  // What each rank's main returned, by rank. Possible errors: that of the first rank that failed; Internal when one
  // died; DeadlineExceeded. After any of them the processes are made anew.
  absl::StatusOr<std::vector<std::string>> Run(const PoolCase& one);

 private:
  struct Process {
    pid_t pid = 0;
    int socket = -1;
  };
  absl::Status Start();
  void Stop();
  absl::StatusOr<std::vector<std::string>> RunOnce(const PoolCase& one, int world);

  const int size_;
  std::vector<Process> processes_;
  std::optional<TemporaryFolder> folder_;
  int num_cases_ = 0;  // each meets under a name of its own
};

}  // namespace trainyard
