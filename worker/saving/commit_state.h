// What the commit thread works on, shared by its two files: commit_thread.cc, which decides what is next, and
// commit_work.cc, which does it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/import_writer.h"
#include "checkpoint/settle.h"
#include "common/steady_cond_var.h"
#include "worker/saving/commit_thread.h"

namespace trainyard {

struct CommitThread::State {
  // Complete under its partial name.
  struct Ready {
    CommitTask task = {};
    std::string manifest_hash = {};
    uint64_t size_bytes = 0;
    absl::Time complete = {};
  };
  // A fact of a checkpoint, until the coordinator has it.
  struct Reported {
    uint64_t fact = 0;
    uint64_t step = 0;
  };

  explicit State(Deps given) : deps(std::move(given)) {}

  // What is left to do goes through here; the thread does it.
  struct Removal {
    SaveKey save;
  };
  struct Pruning {
    uint64_t step = 0;
  };
  using Task = std::variant<CommitTask, Removal, Pruning>;

  const Deps deps;
  absl::Mutex mu;
  SteadyCondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mu);
  bool busy ABSL_GUARDED_BY(mu) = false;
  size_t num_waiting ABSL_GUARDED_BY(mu) = 0;
  bool ungranted ABSL_GUARDED_BY(mu) = false;
  bool over ABSL_GUARDED_BY(mu) = false;  // the generation is: nothing gets a name any more
  bool closing ABSL_GUARDED_BY(mu) = false;
  uint64_t failed ABSL_GUARDED_BY(mu) = 0;
  uint64_t newest_complete ABSL_GUARDED_BY(mu) = 0;
  uint64_t newest_named ABSL_GUARDED_BY(mu) = 0;
  absl::Status quiet_failure ABSL_GUARDED_BY(mu);
  std::deque<Reported> reported ABSL_GUARDED_BY(mu);
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  std::deque<Ready> waiting;  // the thread's own

  std::string FolderOf(const SaveKey& save) const { return PartialPath(deps.run_folder, save.step, save.generation); }
  void AddLine(std::string line) {
    absl::MutexLock lock(&mu);
    lines.push_back(std::move(line));
  }

  // `withdrawn`: nothing failed, it is not wanted any more.
  void Fail(const CommitTask& task, const absl::Status& why, bool withdrawn = false);
  void Remove(const SaveKey& save);
  // The same of a save that came to nothing, which may be because the run folder is gone.
  void RemoveFailed(const SaveKey& save);
  absl::StatusOr<std::vector<CheckpointPart>> AwaitParts(const SaveKey& save);
  absl::StatusOr<Ready> Complete(CommitTask task);
  void CommitOne(CommitTask task);
  // Whether there was a word.
  bool AskForGrant();
  void Name(Ready ready);
  void Prune(uint64_t step);
};

}  // namespace trainyard
