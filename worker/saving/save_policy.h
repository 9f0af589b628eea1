// Decides when a save begins: a state machine that every rank runs on the values that all ranks have agreed on. All
// ranks therefore begin, wait and give up at the same steps, regardless of the state of their own disks.
//
//              due, requested, or to be retried                  every rank has ended its part
//   [nothing] ------------------------------------> [under way] ------------------------------> [nothing]
//                                                      | another save is due: all ranks wait, for a limited time.
//                                                      | After that, or if a save is requested, the new save is
//                                                      v queued; it begins when the present one has ended
//
// Pure; used by the loop's thread only.
#pragma once

#include <cstdint>
#include <optional>

namespace trainyard {

class SavePolicy {
 public:
  // `every_steps`: the longest delay of a retry, in steps; 0: a default. `world_size`: the number of ranks that the
  // sums are over.
  SavePolicy(uint64_t every_steps, int world_size) : every_steps_(every_steps), world_size_(world_size) {}

  // Sums over the ranks about the save that was under way when the ranks computed their terms. They are a part of the
  // sum that all ranks compute in every step (reduction A, worker/collectives/agreement.h). `given_up` and the counters
  // come from rank 0 alone. Counters only grow; each new value has an effect only once.
  struct Sums {
    // The step in which the ranks computed their terms: a sum from before the present save began is about an earlier
    // save.
    uint64_t of_step = UINT64_MAX;
    int ended = 0;          // ranks that have ended their part, written or failed
    int failed = 0;         // of those, the ranks whose part failed
    bool given_up = false;  // the save has taken too long
    uint64_t requests = 0;
    uint64_t commits_failed = 0;
  };
  enum class Outcome { kNothing, kWritten, kFailed };
  // Returns the outcome of the save under way. Called in the order of the steps.
  Outcome Update(uint64_t step, const Sums& sums);

  enum class Action {
    kNothing,
    kBegin,  // begin a save, then call Began
    kAwait,  // all ranks wait for the save under way, call WaitTimedOut if it did not end, then AtBoundary again
  };
  // Called at the end of a step. `due`: checkpoint.every_steps or checkpoint.keep_best requires a save now.
  Action AtBoundary(uint64_t step, bool due);
  // Whether AtBoundary begins a save if none is under way.
  bool WantsSave(uint64_t step, bool due) const;
  // `waited`: no rank takes another step before the save has ended, and a failed save is not retried.
  void Began(uint64_t step, bool waited = false);
  void WaitTimedOut() { waits_ = false; }

  // The step of the save under way.
  std::optional<uint64_t> under_way() const { return under_way_; }

 private:
  void ScheduleRetry(uint64_t step);

  const uint64_t every_steps_;
  const int world_size_;
  std::optional<uint64_t> under_way_;
  bool waited_ = false;  // as passed to Began
  bool queued_ = false;  // a save begins when the one under way has ended
  // Whether a save that is due waits for the one under way. False from a time-out until a save is written and none is
  // queued.
  bool waits_ = true;
  std::optional<uint64_t> retry_at_;
  uint64_t failures_ = 0;                       // in a row
  bool commit_failed_ = false;                  // since the last save that was written
  uint64_t requests_ = 0, commits_failed_ = 0;  // the newest values that have had their effect
};

}  // namespace trainyard
