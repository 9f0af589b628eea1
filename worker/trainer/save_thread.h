// Writes one rank's part of a checkpoint while the rank trains on. Two threads: one of ordinary priority copies the
// state into a snapshot that is kept and reused, one of low priority hashes and writes it. The loop calls Fence before
// it changes the state; it takes part in what is left to be copied, so it never waits longer than a copy of its own
// would take.
//
//   thread.Reserve(bytes);           before the first step: memory is touched once
//   thread.Begin(task);              after step N
//   ...                              forward and backward of step N+1
//   thread.Fence();                  the state may change now
//   thread.ended()                   some time later
//
// A writer that hangs in a system call is given up and left behind: it owns what it reads. Knows no tensors. All calls
// are the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/part.h"
#include "worker/trainer/leavable_thread.h"

namespace trainyard {

// What a rank is to write of one tensor.
struct SaveRange {
  ShardEntry entry = {};
  const char* bytes = nullptr;
  bool stays = false;  // nobody changes `bytes` while `owner` lives: they need no copy
};

struct SaveTask {
  SaveKey save = {};
  uint64_t rank = 0;
  std::string folder = {};  // the partial one; made if it is not there
  struct File {
    std::string name = {};
    std::vector<SaveRange> ranges = {};
  };
  std::vector<File> files = {};
  std::vector<SaveRange> witnessed = {};   // hashed alone
  std::shared_ptr<const void> owner = {};  // of all the bytes
  bool copies = true;                      // false: the state stays as it is until this has ended or was given up
  std::function<absl::Status()> may_write = nullptr;  // asked before the folder is made, and when all is written
};

struct SaveEnd {
  SaveKey save = {};
  absl::Status status = {};
  absl::Duration copying = {};
  absl::Duration writing = {};
  uint64_t bytes = 0;
};

class SaveThread {
 public:
  // `clock`: steady. `bytes_per_s` 0: no limit. Owns neither.
  SaveThread(FileSystem& file_system, Clock& clock, uint64_t bytes_per_s);
  // Cancels what is under way. A writer that does not heed that within two seconds is left behind.
  ~SaveThread();
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  // Memory for copies of so many bytes, touched. Possible errors: ResourceExhausted.
  absl::Status Reserve(uint64_t bytes);

  // Where the one before still hangs in its writing this one fails at once. REQUIRES: the one before has ended, or was
  // given up.
  void Begin(SaveTask task);
  // Returns once the state may change: when it was copied, or cannot be any more.
  void Fence();
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
  struct Work;
  static void CopyForever(const std::shared_ptr<State>& state);
  static void WriteForever(const std::shared_ptr<State>& state);
  static void CopyChunks(State& state, Work& work);
  static absl::Status WriteAll(State& state, Work& work, uint64_t& bytes);
  static absl::Status WriteFile(State& state, Work& work, const SaveTask::File& file, CheckpointPart& part);
  static absl::Status BeforeWrite(State& state, Work& work, uint64_t bytes);

  const std::shared_ptr<State> state_;
  std::shared_ptr<Work> last_;
  std::thread copier_;
  std::unique_ptr<LeavableThread> writer_;
};

}  // namespace trainyard
