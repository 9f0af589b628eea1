// Virtual time: actions run in the order of their times; actions with equal times run in the order in which they were
// scheduled. Also contains random numbers that are the same on every machine. Not thread-safe: a simulation has one
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard::sim {

// SplitMix64, with our own distributions: those of the standard library differ between implementations.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // A separate sequence for one part of the world, independent of what other parts draw.
  Random(uint64_t seed, absl::string_view part) : state_(seed) {
    for (char c : part) state_ = (Next() ^ static_cast<unsigned char>(c)) * 0x9e3779b97f4a7c15u;
  }

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  uint64_t Between(uint64_t from, uint64_t to) { return from + Below(to - from + 1); }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  absl::Duration Between(absl::Duration from, absl::Duration to) { return from + (to - from) * Unit(); }

 private:
  uint64_t state_;
};

class Engine {
 public:
  using Action = std::function<void()>;

  absl::Time now() const { return now_; }

  void At(absl::Time when, Action action) {
    if (when < now_) when = now_;
    actions_.push({when, ++last_, std::move(action)});
  }
  void After(absl::Duration wait, Action action) { At(now_ + wait, std::move(action)); }

  // Runs the next action that is due by `until`. Returns false if there is none; the time is then `until`.
  bool RunNext(absl::Time until) {
    if (actions_.empty() || actions_.top().when > until) {
      now_ = until;
      return false;
    }
    // Moves the action out of the first entry, which is removed next; the fields that define the order are unchanged.
    Entry entry = std::move(const_cast<Entry&>(actions_.top()));
    actions_.pop();
    now_ = entry.when;
    ++count_;
    entry.action();
    return true;
  }

  uint64_t count() const { return count_; }  // number of actions run

 private:
  struct Entry {
    absl::Time when;
    uint64_t order;
    Action action;
    bool operator<(const Entry& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  uint64_t last_ = 0;
  uint64_t count_ = 0;
  std::priority_queue<Entry> actions_;
};

// One direction of a connection: delivers messages in order, each after a delay. While `blocked` returns true, nothing
// is delivered; Pump resumes the delivery. Must be held by shared pointers.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(Engine& engine, std::function<bool()> blocked) : engine_(engine), blocked_(std::move(blocked)) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void Send(absl::Duration delay, Engine::Action deliver) {
    last_due_ = std::max(last_due_, engine_.now() + delay);
    messages_.push({last_due_, std::move(deliver)});
    engine_.At(last_due_, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Pump();
    });
  }
  void Pump() {
    auto self = shared_from_this();  // a message may end the connection
    while (!messages_.empty() && messages_.front().first <= engine_.now() && !blocked_()) {
      Engine::Action deliver = std::move(messages_.front().second);
      messages_.pop();
      deliver();
    }
  }
  // Discards the messages on their way.
  void Clear() { messages_ = {}; }

 private:
  Engine& engine_;
  std::function<bool()> blocked_;
  std::queue<std::pair<absl::Time, Engine::Action>> messages_;
  absl::Time last_due_ = absl::InfinitePast();
};

// The clock of a process or host: wrong by `offset`, and too fast by `drift`.
struct ClockModel {
  absl::Duration offset = absl::ZeroDuration();
  double drift = 0;  // 1e-4: gains 100 microseconds per second

  absl::Time Local(absl::Time real) const { return real + offset + (real - kOrigin) * drift; }
  absl::Time Real(absl::Time local) const {
    if (local == absl::InfiniteFuture() || local == absl::InfinitePast()) return local;
    return kOrigin + (local - offset - kOrigin) / (1 + drift);
  }

  static inline const absl::Time kOrigin = absl::FromUnixSeconds(1'700'000'000);
};

}  // namespace trainyard::sim
