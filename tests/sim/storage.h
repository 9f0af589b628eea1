// The shared file system with the run folders: checkpoints, saves that have no name yet, and fences. Every host sees
// the same contents; written data is never lost, but a host's writes may fail.
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

// The generation that writes. If the coordinator's store is lost, generation numbers start again in a new incarnation
// of the cluster.
struct Writer {
  uint64_t incarnation = 0;
  uint64_t generation = 0;
  auto operator<=>(const Writer&) const = default;
};

// step-N.gG.partial: the ranks' parts, and a manifest when rank 0 has seen all of them.
struct PartialSave {
  JobId job;
  std::set<uint32_t> parts;
  bool manifest = false;  // the manifest is written
  bool torn = false;      // contains a part that could not be written
};

struct Checkpoint {
  JobId job;
  Writer writer;
  bool complete = true;
  std::string hash(uint64_t step) const { return HashOf(step, writer.generation); }
};

struct RunFolder {
  JobId owner;         // the owner of the fence; empty: none yet
  Writer fence;        // the generation that may write
  int64_t holder = 0;  // the process that holds its lock
  JobId settled_by;    // the job that last settled the saves that other generations left
  Writer settled;
  bool stepped = false;                                              // metrics of steps exist
  std::map<uint64_t, Checkpoint> checkpoints;                        // by step
  std::map<std::pair<uint64_t, Writer>, PartialSave> partials = {};  // by step and writer

  bool empty() const { return !stepped && checkpoints.empty() && partials.empty(); }
};

class Storage {
 public:
  // Records that `job` was submitted with the checkpoint.dir of `with`.
  void Share(const JobId& job, const JobId& with) { shared_[job] = with; }
  // Releases all locks, when all processes of an incarnation of the cluster have exited.
  void DropLocks() {
    for (auto& [name, folder] : folders_) folder.holder = 0;
  }

  void Claim(const JobId& job, Writer writer, int64_t pid) {
    RunFolder& folder = Folder(job);
    folder.owner = job;
    folder.fence = writer;
    folder.holder = pid;
  }
  bool IsFenced(const JobId& job, Writer writer) {
    const RunFolder& folder = Folder(job);
    return folder.owner != JobId() && (folder.owner != job || folder.fence > writer);
  }
  void RecordStep(const JobId& job) { Folder(job).stepped = true; }

  void MakePartial(const JobId& job, Writer writer, uint64_t step) { Folder(job).partials[{step, writer}].job = job; }
  void WritePart(const JobId& job, Writer writer, uint64_t step, uint32_t rank, bool torn) {
    PartialSave& partial = Folder(job).partials[{step, writer}];
    partial.job = job;
    partial.parts.insert(rank);
    partial.torn |= torn;
  }
  // Returns false if the partial save was removed or lacks a part.
  bool WriteManifest(const JobId& job, Writer writer, uint64_t step, uint32_t world_size) {
    auto& partials = Folder(job).partials;
    auto at = partials.find({step, writer});
    if (at == partials.end() || at->second.parts.size() < world_size) return false;
    at->second.manifest = true;
    return true;
  }
  // Renames a partial save to a checkpoint. If the step already has a checkpoint, that one stays, and the partial save
  // is removed. Returns false if the partial save does not exist.
  bool GiveName(const JobId& job, Writer writer, uint64_t step) {
    RunFolder& folder = Folder(job);
    auto at = folder.partials.find({step, writer});
    if (at == folder.partials.end()) return false;
    const PartialSave& partial = at->second;
    folder.checkpoints.try_emplace(
        step, Checkpoint{.job = partial.job, .writer = writer, .complete = partial.manifest && !partial.torn});
    folder.partials.erase(at);
    return true;
  }
  void RemovePartial(const JobId& job, Writer writer, uint64_t step) { Folder(job).partials.erase({step, writer}); }
  void SetSettled(const JobId& job, Writer writer) {
    Folder(job).settled_by = job;
    Folder(job).settled = writer;
  }

  // The coordinator has recorded the checkpoint of step `recorded`: removes all checkpoints up to that step except
  // the newest `keep`.
  void Prune(const JobId& job, Writer writer, uint64_t recorded, size_t keep) {
    if (IsFenced(job, writer)) return;
    RunFolder& folder = Folder(job);
    size_t older = 0;
    for (const auto& [step, saved] : folder.checkpoints) older += step <= recorded ? 1 : 0;
    while (older > keep) {
      folder.checkpoints.erase(folder.checkpoints.begin());
      --older;
    }
  }
  const RunFolder& FolderOf(const JobId& job) { return Folder(job); }
  const std::map<JobId, RunFolder>& folders() const { return folders_; }

 private:
  RunFolder& Folder(const JobId& job) {
    auto at = shared_.find(job);
    return folders_[at == shared_.end() ? job : at->second];
  }

  std::map<JobId, JobId> shared_;
  std::map<JobId, RunFolder> folders_;  // key: the first job that uses the folder
};

}  // namespace trainyard::sim
