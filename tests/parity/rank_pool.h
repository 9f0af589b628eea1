// Rank processes that run many cases: starting a process and loading LibTorch takes longer than a short training run.
// Each case uses the first `world` processes, with groups of its own. A process is started when a case first needs it.
// If a rank crashes, hangs or fails, its case fails, and the next case uses new processes.
//
//   int main(argc, argv) { RunAsPoolRankIfRequested(argc, argv, {{"train", TrainMain}}); ... }
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

// The transport of a case. kTwoHosts: the first half of the ranks on one host, the second on another.
enum class PoolTransport { kSharedMemory, kGloo, kTwoHosts };

// The inputs of a rank in one case.
struct PoolRank {
  const Mesh& mesh;
  MeshGroups& groups;
  int rank = 0;
  const GroupOptions& options;  // of `groups`, with the store of this case; a case connects pipeline channels with them
};
using PoolMain = std::function<absl::StatusOr<std::string>(const PoolRank& rank, const std::string& arguments)>;

// A program whose tests use a pool must call this first in main(). In a rank process this serves cases until the pool
// is destroyed, and then exits.
void RunAsPoolRankIfRequested(int argc, char** argv, const std::vector<std::pair<std::string, PoolMain>>& mains);

struct PoolCase {
  MeshShape mesh;  // without cp; the product of the other axes is the number of ranks
  PoolTransport transport = PoolTransport::kSharedMemory;
  std::string main;
  std::string arguments;
  absl::Duration limit = absl::Minutes(2);
};

// Parses the result of a rank that consists of lines "name=number".
using PoolNumbers = std::map<std::string, int64_t>;
PoolNumbers NumbersIn(const std::string& result);

class RankPool {
 public:
  explicit RankPool(int size) : size_(size) {}
  ~RankPool() { Stop(); }

  // Returns the result of each rank's main, by rank. Possible errors: Internal with the error of the first rank that
  // failed or crashed; DeadlineExceeded. After either of them, the next case starts new processes.
  absl::StatusOr<std::vector<std::string>> Run(const PoolCase& pool_case);

 private:
  struct Process {
    pid_t pid = 0;
    int socket = -1;
  };
  absl::Status Start(int world);
  void Stop();
  absl::StatusOr<std::vector<std::string>> RunOnce(const PoolCase& pool_case, int world);

  const int size_;  // the largest number of processes
  std::vector<Process> processes_;
  std::optional<TemporaryFolder> folder_;
  int num_cases_ = 0;  // each case uses its own prefix in the store
};

}  // namespace trainyard
