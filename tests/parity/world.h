// Runs one function on every rank of a group, with a process for each rank: this program again, with arguments that
// identify the case and the rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/unit/temporary_folder.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/group.h"

namespace trainyard {

// The function of a rank. `arguments` are those of the case; the parent receives the returned text.
using RankMain = std::function<absl::StatusOr<std::string>(Communicator& communicator, const std::string& arguments)>;

// A program that may be a rank must call this first in main(). In a rank process this runs the rank and exits.
void RunAsRankIfRequested(int argc, char** argv, const std::vector<std::pair<std::string, RankMain>>& mains);

// One group of processes. kHostwise: two ranks per (simulated) host. The destructor kills the remaining processes.
class World {
 public:
  World(int size, const std::string& main, const std::string& arguments, Transport transport = Transport::kGloo);
  ~World();

  int size() const { return static_cast<int>(pids_.size()); }
  pid_t pid(int rank) const { return pids_[rank]; }
  // The folder that the ranks share. Tests may use files in it as signals.
  const std::string& folder() const { return folder_; }

  // The result of `rank`, after its process has exited. Possible errors: Internal. A rank that fails without crashing
  // prints its own error.
  absl::StatusOr<std::string> ResultOf(int rank);

  // The results of all ranks, or the first error.
  absl::StatusOr<std::vector<std::string>> Results();

 private:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::vector<pid_t> pids_;  // 0 after the process was waited for
};

}  // namespace trainyard
