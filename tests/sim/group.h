// The ranks of one generation and what couples them: a step is made by all of them or by none, over a network of their
// own; when one is gone the others notice.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/sim/judge.h"
#include "tests/sim/scenario.h"

namespace trainyard::sim {

class World;
class Trainer;

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(World& world, const GroupId& id, uint32_t ranks, const JobPlan& plan);

  void Enter(Trainer* trainer);
  void Leave(Trainer* trainer, bool in_order);
  // One more rank may step.
  void Go();
  // All ranks leave after the present step: one was told to (SIGTERM).
  void AskToLeave() { leave_ = true; }
  // All ranks save after the present step, and go on.
  void AskToSave() { save_noted_ = true; }
  // Rank 0 has chosen.
  void StartAt(uint64_t step) {
    first_step_ = step;
    chosen_ = true;
  }
  bool chosen() const { return chosen_; }
  void PartEnded(uint64_t step, uint32_t rank, bool written);
  // The save of this step is the last one, and is tried again where it fails.
  bool WillRetry(uint64_t step);

  bool Whole() const { return trainers_.size() == ranks_; }
  bool Connected() const;  // every rank reaches every other
  uint64_t first_step() const { return first_step_; }
  // How long the rank computes before it waits for the others, in the present step; none is made: zero.
  absl::Duration ComputeTime(const Trainer& trainer) const;
  // The rank is still at it.
  bool Computes(const Trainer& trainer) const;

 private:
  void StepLater();
  void TryStep();
  void AfterStep();
  void BeginSave();
  void SaveThen(bool stopped, bool begun);
  // The last save has failed: it is made again while the ranks hold the state.
  void SaveLastAgain();
  bool LastSaveFailed();
  void EndAll(bool stopped, const std::string& unsaved = "");
  void BreakAll();
  bool AnyFrozen() const;
  absl::Duration LossDelay() const;
  Trainer* First();

  World& world_;
  const GroupId id_;
  const uint32_t ranks_;
  const JobPlan plan_;
  std::map<uint32_t, Trainer*> trainers_;  // alive
  uint64_t first_step_ = 1;
  uint64_t step_ = 0;
  bool stepping_ = false;
  bool over_ = false;
  bool leave_ = false;
  bool chosen_ = false;
  uint64_t saving_ = 0;       // the step whose parts are being written; 0: none
  bool save_noted_ = false;   // one more is to follow
  std::set<uint32_t> parts_;  // that have ended
  bool part_failed_ = false;
  uint64_t retry_after_ = 0;   // steps between a save that failed and the next; 0: none has
  uint64_t retry_at_ = 0;      // a step; 0: nothing to make again
  absl::Duration last_pause_;  // before the last save is tried again; zero: it has not failed
  absl::Time last_save_until_ = absl::InfiniteFuture();
  absl::Duration computes_;  // this step, where no rank is slow
  absl::Time step_began_ = absl::InfiniteFuture();
  absl::Time cut_since_ = absl::InfiniteFuture();
};

}  // namespace trainyard::sim
