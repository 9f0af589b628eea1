// The one thread that feeds the core: it takes a batch of events, commits all their records together, and only
// then releases their effects. So no crash can revoke an effect, and a thousand facts cost one disk write.
//
// While the store accepts no records (the disk is full), nothing is acknowledged. Calls that only read are answered
// from memory, which may hold changes that are not durable yet; other calls are refused with the reason, and all other
// events wait, in order. The commit is tried again until the store accepts it; the core's time stands still meanwhile.
//
// A batch that leads only to acknowledgements is held for up to kHoldMax, to be written with the next ones: while a
// group forms, the facts of its ranks arrive one by one, and a disk write for each would delay all of them.
//
// The clock, the disk and the network (as a sink of effects) are used here, because the core must not use them. Stop
// must not be called on the loop's thread; effects are released on it.
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

// The receiver of effects. Called on the loop's thread; must not wait for anything.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void Release(Effect effect) = 0;
  // Called when all effects of a round have been released. Sends the messages that were held back to be sent together,
  // if they have waited long enough. Returns the time until it must be called again.
  virtual absl::Duration Flush() { return absl::InfiniteDuration(); }
};

// What one round of the loop did.
struct LoopRound {
  std::vector<const char*> events;  // their names
  absl::Duration handle_time;
  absl::Duration commit_time;  // zero: nothing to commit
  size_t records = 0;
  size_t queue_length = 0;       // events left in the queue after the batch was removed
  size_t commit_failures = 0;    // commits that the store refused for now
  bool stalled = false;          // the store still refuses the records
  uint64_t reports_dropped = 0;  // reports that the queue dropped since the round before
};

class CoreLoop {
 public:
  struct Options {
    std::unique_ptr<Core> core;
    uint64_t revision = 0;  // of the store, as loaded
    Store* store = nullptr;
    Clock* clock = nullptr;  // monotonic, see CoreClock
    Clock* wall = nullptr;   // for the times that users read; null: `clock`
    EventQueue* queue = nullptr;
    EffectSink* sink = nullptr;
    std::function<std::vector<Tick::Contact>()> contacts;  // sessions that sent anything since the last tick
    // Returns OK if the caller still waits for the answer. Otherwise the call is answered with the returned error and
    // not processed, so that a call that its caller has given up has no effect. Null: all calls are processed.
    std::function<absl::Status(CallId)> check_waiting = nullptr;
    std::function<void(const LoopRound&, const Core&)> observe;  // may be empty
    // Called with the reason when the store begins to refuse records, and with an empty text when it accepts them
    // again. May be empty.
    std::function<void(const std::string& reason)> stalled = nullptr;
    // Checks that the store is still where it was opened. Called once a second, so that an idle coordinator notices the
    // loss of its store, too. May be empty. Unavailable: it cannot be checked now. Any other error ends the loop.
    std::function<absl::Status()> check_store = nullptr;
    // Called when the loop has ended because the store belongs to another process, has disappeared or is damaged. Every
    // released effect is durable.
    std::function<void(absl::Status)> failed;
  };

  explicit CoreLoop(Options options);
  ~CoreLoop();
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;

  void Start();
  // Closes the queue, handles what is in it, ends the thread.
  void Stop();

  // The longest time for which a batch is held before it is written. The sink may hold its acknowledgements for longer.
  static constexpr absl::Duration kHoldMax = absl::Milliseconds(10);

  // One round of the loop; waits for events at most until `until`. Tests call it without the thread. Returns the number
  // of events handled.
  absl::StatusOr<size_t> RunOnce(absl::Time until);

 private:
  // The output of a round, on its way to the store and then to the sink.
  struct Unwritten {
    std::vector<std::vector<StoreEntry>> commits;
    size_t written = 0;  // of `commits`
    std::vector<Effect> effects;
    LoopRound round;
    std::vector<std::vector<Record>> turns;  // not yet packed into `commits`
  };

  void Loop();
  std::vector<Event> TakeBatch(absl::Time until);
  // Returns the answer to a call whose caller no longer waits for it; none: the event must be processed.
  std::optional<Reply> AnswerIfGivenUp(const Event& event) const;
  bool MayHold(const Unwritten& unwritten) const;
  absl::Status Write(Unwritten unwritten);
  void Release(Unwritten& written);
  // One round while the store refuses the records of an earlier round.
  absl::StatusOr<size_t> RunStalled(absl::Time until);
  void HandleStalled(Event event);
  void Stall(Unwritten unwritten, const absl::Status& status);
  void Observe(const LoopRound& round);

  Options options_;
  uint64_t revision_;
  std::optional<Unwritten> stalled_;
  Unwritten held_;
  absl::Time held_until_ = absl::InfiniteFuture();  // infinite: no batch is held
  std::deque<Event> deferred_;                      // arrived while the store refused records
  size_t deferred_bytes_ = 0;                       // QueuedBytes of them
  absl::Time stalled_since_;
  absl::Time retry_at_;
  absl::Duration retry_wait_;
  absl::Time logged_at_ = absl::InfinitePast();
  bool started_core_ = false;
  CoreClock time_;
  CoreTime last_now_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  absl::Time last_commit_at_ = absl::InfinitePast();
  absl::Time next_store_check_ = absl::InfinitePast();
  absl::Time flush_at_ = absl::InfiniteFuture();
  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
