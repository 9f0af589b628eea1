// The one thread that feeds the core: takes a batch of events, commits all their records in one go, and only then
// releases their effects. So nothing is told that a crash could take back, and a thousand facts cost one disk write.
//
// What the core must not have comes in here: the clock, the disk, the network (as a sink of effects). Start, then Stop
// from any other thread; effects are released on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/core/event_queue.h"
#include "coordinator/store/store.h"

namespace trainyard {

// Where effects go. Called on the loop's thread; must not wait for anything.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void Release(Effect effect) = 0;
  // The round's effects have all been released: what was held back to go out together goes now.
  virtual void Flush() {}
};

// What one round of the loop was like.
struct LoopRound {
  std::vector<const char*> events;  // their names
  absl::Duration handle_time;
  absl::Duration commit_time;       // zero: there was nothing to commit
  size_t records = 0;
  size_t queue_length = 0;          // left after the batch was taken
};

class CoreLoop {
 public:
  struct Options {
    std::unique_ptr<Core> core;
    uint64_t revision = 0;  // of the store, as loaded
    Store* store = nullptr;
    Clock* clock = nullptr;
    EventQueue* queue = nullptr;
    EffectSink* sink = nullptr;
    std::function<std::vector<Tick::Heard>()> heard;             // sessions heard of since the last tick
    std::function<void(const LoopRound&, const Core&)> observe;  // may be empty
    // The store takes nothing any more. The loop has ended; nothing was released that is not durable.
    std::function<void(absl::Status)> failed;
  };

  explicit CoreLoop(Options options);
  ~CoreLoop();
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;

  void Start();
  // Closes the queue, handles what is in it, ends the thread.
  void Stop();

  // One round without the thread, for tests. Returns the number of events handled.
  absl::StatusOr<size_t> RunOnce(absl::Time until);

 private:
  void Loop();
  absl::Status Commit(std::vector<Record> records);
  absl::Status CommitChunk(const std::vector<StoreEntry>& entries);
  absl::Status Finish(Output output, LoopRound round);

  Options options_;
  uint64_t revision_;
  bool started_core_ = false;
  absl::Time last_now_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
