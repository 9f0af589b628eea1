// The one thread that feeds the core: takes a batch of events, commits all their records in one go, and only then
// releases their effects. So nothing is told that a crash could take back, and a thousand facts cost one disk write.
//
// While the store takes nothing (the disk is full), everything that would change something waits, in order: nothing is
// acknowledged, calls are refused with the reason, and reads are answered from memory (the one exception to the above).
// The store is tried again until it takes what it refused; no time passes for the core meanwhile.
//
// A batch that leads to nothing but acknowledgements is held for up to kHoldMax, to be written with what follows:
// while a group forms, its ranks' facts come one by one, and a disk write for each would be what all of them wait for.
//
// What the core must not have comes in here: the clock, the disk, the network (as a sink of effects). Start, then Stop
// from any other thread; effects are released on the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
  // The round's effects have all been released: what was held back, to go out together, may be due. Returns in what
  // time it wants to be called again.
  virtual absl::Duration Flush() { return absl::InfiniteDuration(); }
};

// What one round of the loop was like.
struct LoopRound {
  std::vector<const char*> events;  // their names
  absl::Duration handle_time;
  absl::Duration commit_time;  // zero: there was nothing to commit
  size_t records = 0;
  size_t queue_length = 0;     // left after the batch was taken
  size_t commit_failures = 0;  // commits that the store refused for now
  bool stalled = false;        // and it has not taken them since
  uint64_t reports_shed = 0;   // thinned out of the queue since the round before
};

class CoreLoop {
 public:
  struct Options {
    std::unique_ptr<Core> core;
    uint64_t revision = 0;  // of the store, as loaded
    Store* store = nullptr;
    Clock* clock = nullptr;  // never set, see CoreClock
    Clock* wall = nullptr;   // stamps what people read; none: `clock`
    EventQueue* queue = nullptr;
    EffectSink* sink = nullptr;
    std::function<std::vector<Tick::Contact>()> heard;           // sessions heard of since the last tick
    std::function<void(const LoopRound&, const Core&)> observe;  // may be empty
    // Why the store takes nothing, when that begins, and again as an empty text when it is over. May be empty.
    std::function<void(const std::string& why)> stalled = nullptr;
    // Whether the store still lies where it was opened; asked once a second, so that a coordinator that has nothing to
    // write notices it as well. May be empty. Unavailable: nobody can say so now. Any other error ends the loop.
    std::function<absl::Status()> check_store = nullptr;
    // The store is not ours any more, gone, or damaged. The loop has ended; nothing was released that is not durable.
    std::function<void(absl::Status)> failed;
  };

  explicit CoreLoop(Options options);
  ~CoreLoop();
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;

  void Start();
  // Closes the queue, handles what is in it, ends the thread.
  void Stop();

  // A batch is held no longer than that; an acknowledgement waits longer to go out with others.
  static constexpr absl::Duration kHoldMax = absl::Milliseconds(10);

  // One round without the thread, for tests. Returns the number of events handled.
  absl::StatusOr<size_t> RunOnce(absl::Time until);

 private:
  // What a round has brought about, on its way to the store and then to the world.
  struct Unwritten {
    std::vector<std::vector<StoreEntry>> commits;
    size_t written = 0;  // of `commits`
    std::vector<Effect> effects;
    LoopRound round;
    std::vector<std::vector<Record>> turns;  // that make up `commits`, once it is decided to write them
  };

  void Loop();
  std::vector<Event> TakeBatch(absl::Time until);
  bool MayHold(const Unwritten& unwritten) const;
  absl::Status Write(Unwritten unwritten);
  void Release(Unwritten& written);
  // A round while the store refuses what the one before brought about.
  absl::StatusOr<size_t> RunStalled(absl::Time until);
  void HandleStalled(Event event);
  void Stall(Unwritten unwritten, const absl::Status& status);
  void Observe(const LoopRound& round);

  Options options_;
  uint64_t revision_;
  std::optional<Unwritten> stalled_;
  Unwritten held_;
  absl::Time held_until_ = absl::InfiniteFuture();  // infinite: none is
  std::deque<Event> deferred_;                      // came while the store took nothing
  size_t deferred_bytes_ = 0;                       // QueuedBytes of them
  absl::Time stalled_since_;
  absl::Time retry_at_;
  absl::Duration retry_wait_;
  absl::Time logged_at_ = absl::InfinitePast();
  bool started_core_ = false;
  CoreClock time_;
  CoreTime last_now_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  absl::Time next_store_check_ = absl::InfinitePast();
  absl::Time flush_at_ = absl::InfiniteFuture();
  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
