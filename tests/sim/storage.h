// The shared file system where run folders lie: checkpoints, saves that have no name yet, and who may write. It fails
// nobody, every host of a running group sees it, and what was written stays.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace trainyard::sim {

inline std::string HashOf(uint64_t step, uint64_t generation) {
  return absl::StrCat("hash-", step, "-of-", generation);
}

// A generation of one life of the cluster: where the coordinator's store was lost its generations begin anew.
struct Writer {
  uint64_t life = 0;
  uint64_t generation = 0;
  auto operator<=>(const Writer&) const = default;
};

// step-N.gG.partial: parts of ranks, and a manifest once rank 0 has seen all of them.
struct PartialSave {
  std::set<uint32_t> parts;
  bool manifest = false;
};

struct Checkpoint {
  Writer writer;
  bool whole = true;
  std::string hash(uint64_t step) const { return HashOf(step, writer.generation); }
};

struct RunFolder {
  Writer fence;                                                      // has the folder
  Writer settled;                                                    // has settled last what others left
  std::map<uint64_t, Checkpoint> checkpoints;                        // by step
  std::map<std::pair<uint64_t, Writer>, PartialSave> partials = {};  // by step and who makes it
};

class Storage {
 public:
  // False: a younger generation has the folder.
  bool Take(const JobId& job, Writer writer) {
    RunFolder& folder = folders_[job];
    if (folder.fence > writer) return false;
    folder.fence = writer;
    return true;
  }
  bool Fenced(const JobId& job, Writer writer) { return folders_[job].fence > writer; }

  void MakeFolder(const JobId& job, Writer writer, uint64_t step) { folders_[job].partials[{step, writer}]; }
  void WritePart(const JobId& job, Writer writer, uint64_t step, uint32_t rank) {
    folders_[job].partials[{step, writer}].parts.insert(rank);
  }
  // False: it is gone, or not all of it is there.
  bool WriteManifest(const JobId& job, Writer writer, uint64_t step, uint32_t world_size) {
    auto& partials = folders_[job].partials;
    auto at = partials.find({step, writer});
    if (at == partials.end() || at->second.parts.size() < world_size) return false;
    at->second.manifest = true;
    return true;
  }
  // A partial gets its name, and replaces nothing. False: it is gone.
  bool Name(const JobId& job, Writer writer, uint64_t step) {
    RunFolder& folder = folders_[job];
    auto at = folder.partials.find({step, writer});
    if (at == folder.partials.end()) return false;
    folder.checkpoints.try_emplace(step, Checkpoint{.writer = writer, .whole = at->second.manifest});
    folder.partials.erase(at);
    return true;
  }
  void Remove(const JobId& job, Writer writer, uint64_t step) { folders_[job].partials.erase({step, writer}); }
  void SetSettled(const JobId& job, Writer writer) { folders_[job].settled = writer; }

  // `recorded` is known to the coordinator: what is older than the newest `keep` up to it goes.
  void Prune(const JobId& job, Writer writer, uint64_t recorded, size_t keep) {
    RunFolder& folder = folders_[job];
    if (folder.fence > writer) return;
    size_t older = 0;
    for (const auto& [step, saved] : folder.checkpoints) older += step <= recorded ? 1 : 0;
    while (older > keep) {
      folder.checkpoints.erase(folder.checkpoints.begin());
      --older;
    }
  }
  const RunFolder& FolderOf(const JobId& job) { return folders_[job]; }
  const std::map<JobId, RunFolder>& folders() const { return folders_; }

 private:
  std::map<JobId, RunFolder> folders_;
};

}  // namespace trainyard::sim
