// Runs one function on every rank of a group, each rank a process of its own: this program once more, with arguments
// that say which rank of which case it is.
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

// What a rank does. `arguments` are the case's; what it returns is handed to the parent.
using RankMain = std::function<absl::StatusOr<std::string>(Communicator& communicator, const std::string& arguments)>;

// A program that may be a rank calls this first in main(). When it is one, runs it and ends the process.
void BecomeRankIfAsked(int argc, char** argv, const std::vector<std::pair<std::string, RankMain>>& mains);

// One group of processes. kHostwise: two ranks a place. Kills what is left of them when it goes.
class World {
 public:
  World(int size, const std::string& main, const std::string& arguments, Transport transport = Transport::kGloo);
  ~World();

  int size() const { return static_cast<int>(pids_.size()); }
  pid_t pid(int rank) const { return pids_[rank]; }
  // The folder the ranks share, for signals of a test's own.
  const std::string& folder() const { return folder_; }

  // What `rank` returned, once its process has ended. Possible errors: that of the rank; Internal when it crashed.
  absl::StatusOr<std::string> ResultOf(int rank);

  // All of them, by rank; the first error if there is one.
  absl::StatusOr<std::vector<std::string>> Results();

 private:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::vector<pid_t> pids_;  // 0 once it was waited for
};

}  // namespace trainyard
