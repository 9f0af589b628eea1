// The coordinator's process: the production core with a model of the production loop, on a disk that must be synced,
// with its own clock. It can crash at any event, also between a commit and the release of its effects, and can be
// stopped for a while.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/core/core_loop.h"
#include "tests/sim/stale.h"
#include "tests/sim/store_model.h"

namespace trainyard::sim {

class World;

// The clock of a process, as the production code reads it.
class ProcessClock final : public Clock {
 public:
  explicit ProcessClock(Engine& engine) : engine_(engine) {}
  absl::Time TimeNow() override { return model.Local(engine_.now()); }

  ClockModel model;

 private:
  Engine& engine_;
};

class CoordinatorProcess final : public EffectSink {
 public:
  // Receives the reply to a call; nullopt if the coordinator is down or crashes before it replies.
  using Answer = std::function<void(std::optional<Reply>)>;
  struct Watcher {
    std::function<void(const WatchBatch&)> batch;
    std::function<void(absl::Status)> ended;  // also called when the coordinator crashes
  };

  explicit CoordinatorProcess(World& world);

  void Start();
  void Crash();
  void Pause();
  void Continue();
  bool alive() const { return loop_ != nullptr; }
  bool paused() const { return paused_; }
  uint64_t incarnation() const { return incarnation_; }
  const Core& core() const { return *core_; }

  // Posts an event to the given incarnation; the event is lost if that incarnation has ended.
  void Post(uint64_t incarnation, Event event);
  void RecordContact(uint64_t incarnation, SessionId session);
  SessionId NewSession() { return SessionId(++last_id_); }
  // Posts the event that `make` creates for the id of the call; `answer` receives the reply.
  void Call(const std::function<Event(CallId)>& make, Answer answer);
  WatchId Watch(Watcher watcher);
  void Unwatch(WatchId watch) { watchers_.erase(watch); }
  bool Watches(WatchId watch) const { return watchers_.contains(watch); }

  void Release(Effect effect) override;

  StoreModel store;
  ProcessClock clock;
  size_t freed_bytes = 0;                              // the memory that its last crash freed
  absl::Duration wall_offset;                          // used by the next incarnation
  absl::Duration commit_time = absl::Milliseconds(2);  // the longest time of a commit

 private:
  void TickSoon();
  void Round();
  void RunLoop(std::vector<Event> events);
  void RunOne(Event event);
  void Deliver();
  void Perform(Effect& effect);
  std::vector<Tick::Contact> TakeContacts();

  void Do(Reply& effect);
  void Do(WatchBatch& effect);
  void Do(EndWatch& effect);
  void Do(SendToHost& effect);
  void Do(EndSession& effect);
  void Do(SendValues& effect);
  void Do(WriteLog& effect);
  void Do(JobPublished& effect);
  template <typename Other>
  void Do(Other&) {}  // metrics and output are ignored here

  World& world_;
  uint64_t incarnation_ = 0;
  uint64_t last_id_ = 0;
  bool paused_ = false;
  bool busy_ = false;  // a commit is in progress
  const Core* core_ = nullptr;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<CoreLoop> loop_;
  std::deque<Event> waiting_;
  std::optional<StaleCheck> stale_;  // for an event that is handled alone
  std::map<SessionId, absl::Time> last_contacts_;
  std::vector<Effect> effects_;  // not yet released
  std::map<CallId, Answer> calls_;
  std::map<WatchId, Watcher> watchers_;
};

}  // namespace trainyard::sim
