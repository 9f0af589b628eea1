// The state of the commit thread, shared by its two files: commit_thread.cc decides what is done next, commit_work.cc
// does it.
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
#include "checkpoint/catalog.h"
#include "checkpoint/settle.h"
#include "common/steady_cond_var.h"
#include "worker/saving/commit_thread.h"

namespace trainyard {

struct CommitThread::State {
  // A checkpoint that is complete under its partial name and waits for the grant.
  struct Ready {
    CommitTask task = {};
    std::string manifest_hash = {};
    uint64_t size_bytes = 0;
    absl::Time complete = {};  // when it became complete
  };
  // A `saved` fact that the coordinator has not confirmed yet.
  struct Reported {
    uint64_t fact = 0;
    uint64_t step = 0;
  };

  explicit State(Deps deps_of_thread) : deps(std::move(deps_of_thread)) {}

  // The tasks in the queue.
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
  bool busy ABSL_GUARDED_BY(mu) = false;              // the thread works on a task that it has removed from `tasks`
  bool committing ABSL_GUARDED_BY(mu) = false;        // that task is a commit
  size_t num_waiting ABSL_GUARDED_BY(mu) = 0;         // the size of `waiting`
  bool without_grant ABSL_GUARDED_BY(mu) = false;     // name checkpoints without waiting for grants
  bool generation_ended ABSL_GUARDED_BY(mu) = false;  // no checkpoint is named any more
  bool closing ABSL_GUARDED_BY(mu) = false;
  uint64_t failed ABSL_GUARDED_BY(mu) = 0;
  uint64_t newest_complete ABSL_GUARDED_BY(mu) = 0;
  uint64_t newest_named ABSL_GUARDED_BY(mu) = 0;
  absl::Status quiet_failure ABSL_GUARDED_BY(mu);  // of tasks with CommitTask::quiet, for TakeFailure
  std::deque<Reported> reported ABSL_GUARDED_BY(mu);
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);  // for the log
  std::deque<Ready> waiting;                           // used by the commit thread only

  std::string FolderOf(const SaveKey& save) const { return PartialPath(deps.run_folder, save.step, save.generation); }
  void AddLine(std::string line) {
    absl::MutexLock lock(&mu);
    lines.push_back(std::move(line));
  }

  // `withdrawn`: the save did not fail, but it is no longer wanted.
  void Fail(const CommitTask& task, const absl::Status& why, bool withdrawn = false);
  void Remove(const SaveKey& save);
  // Removes a save that failed. First recreates the run folder if it was removed, which may be why the save failed.
  void RemoveFailed(const SaveKey& save);
  absl::StatusOr<std::vector<CheckpointPart>> AwaitParts(const SaveKey& save);
  absl::StatusOr<Ready> Complete(CommitTask task);
  // The index of the waiting checkpoint that `newest` replaces: the oldest that retention does not keep for ever
  // (keep_every, keep_best); the oldest of all if it keeps all.
  size_t ChooseReplaced(const CommitTask& newest) const;
  void CommitOne(CommitTask task);
  // Returns whether the coordinator answered.
  bool RequestGrant();
  void Name(Ready ready);
  void Prune(uint64_t step);
};

}  // namespace trainyard
