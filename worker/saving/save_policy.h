// When a save begins: a state machine that every rank runs alike, on nothing but what all of them have agreed on. So
// they begin, wait and give up at the same steps, whatever each one's disk does.
//
//              due, asked for, or to be tried again             every rank has ended its part
//   [nothing] ------------------------------------> [under way] ------------------------------> [nothing]
//                                                      | due meanwhile: all wait for it, a while; then, and
//                                                      v whenever one was asked for: noted, and begun after it
//
// Pure; belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <optional>

namespace trainyard {

class SavePolicy {
 public:
  // `every_steps` 0: nothing is ever due. `world_size`: of how many ranks sums are.
  SavePolicy(uint64_t every_steps, int world_size) : every_steps_(every_steps), world_size_(world_size) {}

  // Of the save that was under way when ranks gave their terms: sums over the ranks; `given_up` and the counts are rank
  // 0's alone. Counts only grow, and each greater one acts once.
  struct Sums {
    // In which ranks gave their terms: a sum that was under way when the save began tells of the one before.
    uint64_t of_step = UINT64_MAX;
    int ended = 0;   // ranks that are done with their part, whatever came of it
    int failed = 0;  // of them
    bool given_up = false;
    uint64_t requests = 0;
    uint64_t commits_failed = 0;
  };
  enum class Outcome { kNothing, kWritten, kFailed };
  // What became of the save under way; in the order of the steps.
  Outcome Update(uint64_t step, const Sums& sums);

  enum class Act {
    kNothing,
    kBegin,  // call Began
    kAwait,  // all wait for the one under way, and ask again; in vain: call WaitedInVain first
  };
  // At the end of a step. `due`: by every_steps.
  Act AtBoundary(uint64_t step, bool due);
  // `waited`: nobody steps on before it has ended; where it fails it is not tried again.
  void Began(uint64_t step, bool waited = false);
  void WaitedInVain() { patient_ = false; }

  // The step of the save under way.
  std::optional<uint64_t> under_way() const { return under_way_; }

 private:
  void TryAgain(uint64_t step);

  const uint64_t every_steps_;
  const int world_size_;
  std::optional<uint64_t> under_way_;
  bool waited_ = false;
  bool queued_ = false;
  bool patient_ = true;  // the disk has kept up so far
  std::optional<uint64_t> retry_at_;
  uint64_t failures_ = 0;                       // in a row
  bool commit_failed_ = false;                  // since the last that was written
  uint64_t requests_ = 0, commits_failed_ = 0;  // that have acted
};

}  // namespace trainyard
