// Turns what all ranks have written into a checkpoint, on rank 0, in the order in which saves ended: reads the parts,
// writes the manifest, asks the coordinator for the grant, gives the folder its name; removes what failed, and old
// checkpoints that need not stay. Whatever the disk, the network file system or the coordinator take, the loop does not
// wait for it.
//
// One thread of its own, which calls the link, the file system and `check_fence`. All methods are the loop's.
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
  Manifest head = {};                      // all but what parts and fingerprint tell
  absl::Time began = {};                   // of the save, by the clock
  absl::Duration stalled = {};             // that rank 0's loop waited for it
  bool waited = false;                     // it did all the time
  uint64_t stop_request = 0;               // that is off where it comes to nothing; 0: none
  bool quiet = false;                      // where it fails, TakeFailure says so, and nothing is reported
};

class CommitThread {
 public:
  struct Deps {
    std::string run_folder;
    uint64_t generation = 0;  // ours: partials of others are swept
    Retention retention;
    FileSystem& file_system;
    Link& link;
    Clock& clock;  // steady
    // OK while the run folder is this generation's; see [Note: fence] in run_folder.h.
    std::function<absl::Status()> check_fence;
    // Makes the run folder again if somebody has removed it. Called after a save that failed.
    std::function<absl::Status()> recreate_folder = nullptr;
    // Adds what is known of the data; may take long. Returns a line for the log, or nothing.
    std::function<std::string(ManifestData&)> describe_data;
    absl::Duration part_patience = absl::Seconds(90);  // for a network file system to show what is there
  };
  explicit CommitThread(Deps deps);
  // Leaves what is not named yet as it is. A thread that hangs in a system call for two seconds is left behind.
  ~CommitThread();
  CommitThread(const CommitThread&) = delete;
  CommitThread& operator=(const CommitThread&) = delete;

  void Commit(CommitTask task);
  // A save that some rank could not write.
  void Discard(const SaveKey& save);
  // Waits up to `limit` until another save would find at most one before it. A loop that saves faster than this thread
  // can name must wait: what piles up here is disk.
  bool AwaitRoom(absl::Duration limit);
  // Looks for facts that the coordinator has confirmed, and removes what need not stay then. Cheap.
  void PruneConfirmed();

  // Waits up to `limit` until nothing is left to do. With `ungranted`, what is complete then and still waits for the
  // coordinator's word gets its name without.
  bool Drain(absl::Duration limit, bool ungranted = false);

  // The same for all that does not wait for the coordinator.
  bool AwaitTasks(absl::Duration limit);

  // Lets so much time pass.
  void Pause(absl::Duration duration);

  // Of the newest checkpoint that was told and is not confirmed yet; 0: none.
  uint64_t unconfirmed_fact() const;
  // Commits that came to nothing by a failure, so far.
  uint64_t num_failed() const;
  // Of the newest checkpoint that has its name, or is complete and waits for it. 0: none.
  uint64_t newest_complete() const;
  // Of the newest checkpoint that has its name. 0: none.
  uint64_t newest_named() const;
  // Why the last quiet task, or the making of the run folder after it, failed; OK: neither did. Since the last call.
  absl::Status TakeFailure();
  // What the log should say, since the last call.
  std::vector<std::string> TakeLines();

 private:
  struct State;
  static void Serve(State& state);

  const std::shared_ptr<State> state_;
  std::unique_ptr<LeavableThread> thread_;
};

}  // namespace trainyard
