// Turns the parts that all ranks have written into a checkpoint, on rank 0, in the order in which the saves ended:
// reads the parts, writes the manifest, requests the grant from the coordinator and renames the folder to its final
// name. Also removes failed saves and old checkpoints. The training loop does none of this itself, because the
// disk, the network file system and the coordinator may be slow.
//
// Threads: a thread of its own does this work, and calls the file system and `check_fence`. All methods are called by
// the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/catalog.h"
#include "checkpoint/file_system.h"
#include "checkpoint/part.h"
#include "common/clock.h"
#include "worker/link/link.h"
#include "worker/saving/leavable_thread.h"

namespace trainyard {

// A save whose parts all ranks have written.
struct CommitTask {
  SaveKey save = {};
  std::vector<TensorHeader> tensors = {};  // of the state, in the manifest's order
  Manifest head = {};                      // everything except what comes from the parts and the data's fingerprint
  absl::Time began = {};                   // when the save began, by Deps::clock
  absl::Duration stalled = {};             // how long rank 0's loop waited for the save
  bool waited = false;                     // the loop waited until the save had ended
  uint64_t stop_request = 0;               // the stop that is cancelled if this save fails; 0: none
  bool quiet = false;                      // a failure is returned by TakeFailure and not reported
};

class CommitThread {
 public:
  // The thread may be left behind (see the destructor), so the functions own everything that they use.
  struct Deps {
    std::string run_folder;
    uint64_t generation = 0;  // of this rank; partial folders of older generations are removed
    Retention retention;
    FileSystem& file_system;
    Link& link;
    Clock& clock;  // steady
    // OK while this generation owns the run folder; see [Note: fence] in run_folder.h.
    std::function<absl::Status()> check_fence;
    // Recreates the run folder if it was removed. Called after a save that failed.
    std::function<absl::Status()> recreate_folder = nullptr;
    // Adds the description of the data, which may take long. Returns a line for the log, or an empty string.
    std::function<std::string(ManifestData&)> describe_data;
    absl::Duration part_patience = absl::Seconds(90);  // how long a network file system may take to show a file
  };
  explicit CommitThread(Deps deps);
  // Checkpoints that have no final name yet stay as they are. A thread that hangs in a system call for two seconds is
  // left behind.
  ~CommitThread();
  CommitThread(const CommitThread&) = delete;
  CommitThread& operator=(const CommitThread&) = delete;

  void Commit(CommitTask task);
  // Removes what was written of a save that failed on some rank.
  void Discard(const SaveKey& save);
  // Waits up to `limit` until at most one save is queued or being committed. Without this wait, a loop that saves
  // faster than this thread can commit would fill the disk.
  bool AwaitQueueSpace(absl::Duration limit);
  // Checks which `saved` facts the coordinator has confirmed, and has the thread remove the checkpoints that retention
  // no longer needs. Cheap.
  void PruneConfirmed();

  // Waits up to `limit` until nothing is left to do, and returns whether that is so. With `without_grant`, checkpoints
  // that are complete and still wait for a grant get their names without one.
  bool Drain(absl::Duration limit, bool without_grant = false);

  // Waits up to `limit` until the tasks are done, but not for grants.
  bool AwaitTasks(absl::Duration limit);

  // Sleeps for `duration`.
  void Pause(absl::Duration duration);

  // The number of the newest `saved` fact that is not confirmed yet; 0: none.
  uint64_t unconfirmed_fact() const;
  // The number of commits that failed, so far.
  uint64_t num_failed() const;
  // The step of the newest checkpoint that is named, or complete and waiting for its grant. 0: none.
  uint64_t newest_complete() const;
  // The step of the newest checkpoint that is named. 0: none.
  uint64_t newest_named() const;
  // Why a quiet commit since the last call failed, or why the run folder was not recreated after it; OK: no failure.
  absl::Status TakeFailure();
  // Lines for the log, since the last call.
  std::vector<std::string> TakeLines();

 private:
  struct State;
  static void Serve(State& state);

  const std::shared_ptr<State> state_;
  std::unique_ptr<LeavableThread> thread_;
};

}  // namespace trainyard
