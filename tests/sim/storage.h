// The shared file system where run folders lie: checkpoints by step, and the generation that may write. It fails
// nobody, and every host of a running group sees it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace trainyard::sim {

inline std::string HashOf(uint64_t step, uint64_t generation) {
  return absl::StrCat("hash-", step, "-of-", generation);
}

struct RunFolder {
  uint64_t fence = 0;                           // a younger generation has taken the folder
  std::map<uint64_t, std::string> checkpoints;  // step → hash
};

class Storage {
 public:
  // False: a younger generation has the folder.
  bool Take(const JobId& job, uint64_t generation) {
    RunFolder& folder = folders_[job];
    if (folder.fence > generation) return false;
    folder.fence = generation;
    return true;
  }
  bool Save(const JobId& job, uint64_t generation, uint64_t step) {
    RunFolder& folder = folders_[job];
    if (folder.fence > generation) return false;
    folder.checkpoints[step] = HashOf(step, generation);
    return true;
  }
  // `recorded` is known to the coordinator: what is older than the newest `keep` up to it goes.
  void Prune(const JobId& job, uint64_t generation, uint64_t recorded, size_t keep) {
    RunFolder& folder = folders_[job];
    if (folder.fence > generation) return;
    size_t older = 0;
    for (const auto& [step, hash] : folder.checkpoints) older += step <= recorded ? 1 : 0;
    while (older > keep) {
      folder.checkpoints.erase(folder.checkpoints.begin());
      --older;
    }
  }
  const RunFolder& FolderOf(const JobId& job) { return folders_[job]; }

 private:
  std::map<JobId, RunFolder> folders_;
};

}  // namespace trainyard::sim
