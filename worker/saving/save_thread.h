// Writes one rank's part of a checkpoint while the rank trains on. Two threads: one of ordinary priority copies the
// state into memory that is kept and reused (save_memory.h), one of low priority hashes and writes it. The loop calls
// Fence before it changes the state; it takes part in what is left to be copied, so it never waits longer than a copy
// of its own would take.
//
//   thread.Reserve(bytes);           before the first step: memory is touched once
//   thread.Begin(task);              after step N
//   ...                              forward and backward of step N+1
//   thread.WaitForCopy();                  the state may change now
//   thread.ended()                   some time later
//
// Copies in shared memory are sealed before the disk is touched, and are there when this process is not; the newest
// whole one is never written over.
//
// A writer that hangs in a system call is given up and left behind: it owns what it reads. Knows no tensors. All calls
// are the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/file_system.h"
#include "common/clock.h"
#include "worker/saving/leavable_thread.h"
#include "worker/saving/save_memory.h"
#include "worker/saving/save_task.h"

namespace trainyard {

struct SaveWork;

class SaveThread {
 public:
  // What the writer does where the limit of bytes a second has it wait. In tests, which have a clock of their own.
  using Wait = std::function<void(absl::Duration)>;

  // `clock`: steady. `bytes_per_s` 0: no limit. Owns neither. `wait` null: by the machine's steady clock; Hurry and
  // GiveUp end it.
  SaveThread(FileSystem& file_system, Clock& clock, uint64_t bytes_per_s, Wait wait = nullptr);
  // Cancels what is under way. A writer that does not heed that within two seconds is left behind.
  ~SaveThread();
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  // Memory for copies of so many bytes, touched. Possible errors: ResourceExhausted.
  absl::Status Reserve(uint64_t bytes) { return memory_.ReservePrivate(bytes); }
  // The same in shared memory, twice. Possible errors: those of SnapshotBuffer::Make.
  absl::Status ReserveShared(const SnapshotPlace& place, uint64_t bytes) { return memory_.ReserveShared(place, bytes); }
  // Gives it all back, snapshots included: nobody will want them.
  void DropMemory() { memory_.Drop(); }
  uint64_t reserved_bytes() const { return memory_.reserved_bytes(); }
  // Has the snapshots that older generations of the job have there removed, in the background.
  void RemoveOlderSnapshots(SnapshotPlace place);

  // Where the one before still hangs in its writing this one fails at once. REQUIRES: the one before has ended, or was
  // given up.
  void Begin(SaveTask task);
  // Returns once the state may change: when it was copied, or cannot be any more.
  void WaitForCopy();
  // What became of the last that was begun; none: it is under way.
  std::optional<SaveEnd> ended() const;
  // Waits up to `limit` for that.
  bool AwaitEnd(absl::Duration limit);
  // No limit of bytes a second for the one under way.
  void Hurry();
  // The one under way has failed, with `why`, unless it has ended.
  void GiveUp(absl::Status why);

 private:
  struct State;
  static void CopyForever(State& state);
  static void WriteForever(State& state);
  static void CopyChunks(State& state, SaveWork& work);
  static void WriteOne(State& state, SaveWork& work);
  static absl::Status BeforeWrite(State& state, SaveWork& work, uint64_t bytes);
  absl::Status TakeBuffer(SaveWork& work);

  const std::shared_ptr<State> state_;
  SaveMemory memory_;
  std::shared_ptr<SaveWork> last_;
  std::thread copier_;
  std::unique_ptr<LeavableThread> writer_;
};

}  // namespace trainyard
