// The shared file system where run folders lie: checkpoints, saves that have no name yet, and who may write. Every host
// of a running group sees it, and what was written stays; it is written through by hosts, of which one may fail.
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
  JobId job;
  std::set<uint32_t> parts;
  bool manifest = false;
  bool torn = false;  // a part is there that could not be written
};

struct Checkpoint {
  JobId job;
  Writer writer;
  bool whole = true;
  std::string hash(uint64_t step) const { return HashOf(step, writer.generation); }
};

struct RunFolder {
  JobId owner;         // whose fence it is; empty: nobody's yet
  Writer fence;        // has the folder
  int64_t holder = 0;  // the process that has its lock
  JobId settled_by;    // who has settled last what others left
  Writer settled;
  bool stepped = false;                                              // metrics of steps are there
  std::map<uint64_t, Checkpoint> checkpoints;                        // by step
  std::map<std::pair<uint64_t, Writer>, PartialSave> partials = {};  // by step and who makes it

  bool empty() const { return !stepped && checkpoints.empty() && partials.empty(); }
};

class Storage {
 public:
  // Two jobs were given one checkpoint.dir.
  void Share(const JobId& job, const JobId& with) { shared_[job] = with; }
  // All processes of a life are gone.
  void DropLocks() {
    for (auto& [name, folder] : folders_) folder.holder = 0;
  }

  void Take(const JobId& job, Writer writer, int64_t pid) {
    RunFolder& folder = Of(job);
    folder.owner = job;
    folder.fence = writer;
    folder.holder = pid;
  }
  bool Fenced(const JobId& job, Writer writer) {
    const RunFolder& folder = Of(job);
    return folder.owner != JobId() && (folder.owner != job || folder.fence > writer);
  }
  void NoteStep(const JobId& job) { Of(job).stepped = true; }

  void MakeFolder(const JobId& job, Writer writer, uint64_t step) { Of(job).partials[{step, writer}].job = job; }
  void WritePart(const JobId& job, Writer writer, uint64_t step, uint32_t rank, bool torn) {
    PartialSave& partial = Of(job).partials[{step, writer}];
    partial.job = job;
    partial.parts.insert(rank);
    partial.torn |= torn;
  }
  // False: it is gone, or not all of it is there.
  bool WriteManifest(const JobId& job, Writer writer, uint64_t step, uint32_t world_size) {
    auto& partials = Of(job).partials;
    auto at = partials.find({step, writer});
    if (at == partials.end() || at->second.parts.size() < world_size) return false;
    at->second.manifest = true;
    return true;
  }
  // A partial gets its name, and replaces nothing. False: it is gone.
  bool Name(const JobId& job, Writer writer, uint64_t step) {
    RunFolder& folder = Of(job);
    auto at = folder.partials.find({step, writer});
    if (at == folder.partials.end()) return false;
    const PartialSave& partial = at->second;
    folder.checkpoints.try_emplace(
        step, Checkpoint{.job = partial.job, .writer = writer, .whole = partial.manifest && !partial.torn});
    folder.partials.erase(at);
    return true;
  }
  void Remove(const JobId& job, Writer writer, uint64_t step) { Of(job).partials.erase({step, writer}); }
  void SetSettled(const JobId& job, Writer writer) {
    Of(job).settled_by = job;
    Of(job).settled = writer;
  }

  // `recorded` is known to the coordinator: what is older than the newest `keep` up to it goes.
  void Prune(const JobId& job, Writer writer, uint64_t recorded, size_t keep) {
    if (Fenced(job, writer)) return;
    RunFolder& folder = Of(job);
    size_t older = 0;
    for (const auto& [step, saved] : folder.checkpoints) older += step <= recorded ? 1 : 0;
    while (older > keep) {
      folder.checkpoints.erase(folder.checkpoints.begin());
      --older;
    }
  }
  const RunFolder& FolderOf(const JobId& job) { return Of(job); }
  const std::map<JobId, RunFolder>& folders() const { return folders_; }

 private:
  RunFolder& Of(const JobId& job) {
    auto at = shared_.find(job);
    return folders_[at == shared_.end() ? job : at->second];
  }

  std::map<JobId, JobId> shared_;
  std::map<JobId, RunFolder> folders_;  // by the first job that was given it
};

}  // namespace trainyard::sim
