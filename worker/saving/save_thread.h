// Writes one rank's part of a checkpoint while the rank continues to train. Two threads: the copier, of ordinary
// priority, copies the state into memory that is reused (save_memory.h); the writer, of low priority, hashes and writes
// the copy. Before the loop changes the state it calls WaitForCopy, which helps to copy what is left; so the loop never
// waits longer than it would take to make the copy itself.
//
//   thread.Reserve(bytes);           before the first step: memory is allocated and touched once
//   thread.Begin(task);              after step N
//   ...                              forward and backward of step N+1
//   thread.WaitForCopy();            now the state may change
//   thread.ended()                   some time later
//
// Copies in shared memory are sealed (marked as complete) before the disk is touched, and outlive this process; the
// newest complete one is never overwritten.
//
// A writer that hangs in a system call can be left behind, because it owns what it reads. This class knows no tensors.
// All methods are called by the loop's thread.
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
  // How the writer waits for the limit of bytes per second. For tests, which have a clock of their own.
  using Wait = std::function<void(absl::Duration)>;

  // Owns neither `file_system` nor `clock`, which is steady. `bytes_per_s` 0: no limit. `wait` null: waits by the
  // machine's steady clock; LiftByteLimit and GiveUp end that wait.
  SaveThread(FileSystem& file_system, Clock& clock, uint64_t bytes_per_s, Wait wait = nullptr);
  // Cancels the save under way. A writer that does not end within two seconds is left behind.
  ~SaveThread();
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  // Allocates and touches memory for copies of this many bytes. Possible errors: ResourceExhausted.
  absl::Status Reserve(uint64_t bytes) { return memory_.ReservePrivate(bytes); }
  // Allocates two buffers of this size in shared memory instead. Possible errors: those of SnapshotBuffer::Make.
  absl::Status ReserveShared(const SnapshotPlace& place, uint64_t bytes) { return memory_.ReserveShared(place, bytes); }
  // Releases all memory and removes the snapshots. Called when no process will need them.
  void DropMemory() { memory_.Drop(); }
  uint64_t reserved_bytes() const { return memory_.reserved_bytes(); }
  // Removes the snapshots of older generations of the job, in the background.
  void RemoveOlderSnapshots(SnapshotPlace place);

  // If the writer still hangs in an earlier save, this save fails immediately and ended() returns the error. REQUIRES:
  // the previous save has ended, or was given up.
  void Begin(SaveTask task);
  // Returns when the state may change: the copy is complete, or was cancelled.
  void WaitForCopy();
  // How the last save ended; none: it is under way.
  std::optional<SaveEnd> ended() const;
  // Waits up to `limit` for the save to end; returns whether it has.
  bool AwaitEnd(absl::Duration limit);
  // Lifts the limit of bytes per second for the save under way.
  void LiftByteLimit();
  // Fails the save under way with `why`, unless it has ended.
  void GiveUp(absl::Status why);

 private:
  struct State;
  static void CopyForever(State& state);
  static void WriteForever(State& state);
  static void ProcessChunks(State& state, SaveWork& work);
  static void WriteOne(State& state, SaveWork& work);
  static absl::Status BeforeWrite(State& state, SaveWork& work, uint64_t bytes);
  absl::Status AcquireBuffer(SaveWork& work);

  const std::shared_ptr<State> state_;
  SaveMemory memory_;
  std::shared_ptr<SaveWork> last_;  // the newest save; null: there was none
  std::thread copier_;
  std::unique_ptr<LeavableThread> writer_;
};

}  // namespace trainyard
