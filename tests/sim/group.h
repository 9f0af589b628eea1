// The ranks of one generation: all of them make a step together or none does, over a data network that can be cut
// separately from the control network. When one exits, the others detect it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/judge.h"
#include "tests/sim/model_parallel.h"
#include "tests/sim/scenario.h"

namespace trainyard::sim {

class World;
class Trainer;

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(World& world, const GroupId& id, uint32_t ranks, const JobPlan& plan);

  void Enter(Trainer* trainer);
  // A trainer has ended. Unless its end was `orderly`, the connections of the other ranks break.
  void Leave(Trainer* trainer, bool orderly);
  // One more rank has received `go`; the steps begin when all have.
  void Go();
  // All ranks leave after the current step, because one received SIGTERM.
  void RequestLeave() { leave_requested_ = true; }
  // All ranks save after the current step, and continue.
  void RequestSave() { save_pending_ = true; }
  // Rank 0 has chosen the checkpoint.
  void StartAt(uint64_t step) {
    first_step_ = step;
    chosen_ = true;
  }
  bool chosen() const { return chosen_; }
  void PartEnded(uint64_t step, uint32_t rank, bool written);
  // Whether parts of a save are being written. After the last step all ranks wait until they are complete.
  bool WritesParts() const { return saving_ != 0; }
  // Whether a failed save of this step is retried with the same state. Only the save of the last step is retried in
  // this way, for a limited time, and not if the ranks were ordered to end.
  bool WillRetry(uint64_t step);

  bool IsComplete() const { return trainers_.size() == ranks_; }
  bool Connected() const;  // whether every rank reaches every other
  uint64_t first_step() const { return first_step_; }
  // The time that the rank computes in the current step before it waits for the others; zero if there is no step.
  absl::Duration ComputeTime(const Trainer& trainer) const;
  // Whether the rank still computes its part of the current step.
  bool IsComputing(const Trainer& trainer) const;
  // Adds the communicators of a divided model to the report of the rank. The communicator of all ranks is not one of
  // them.
  void Report(const Trainer& trainer, v1::RankReport& report) const;
  // Makes the rank leave out an operation, after `after` further ones. Returns false if the group cannot: its model is
  // not divided, or the usual time of a step is not known yet.
  bool LeaveOutOperation(const Trainer& trainer, uint64_t after);
  uint64_t step() const { return step_; }
  // Whether stopping a rank now would hold up others, because the model is divided and a step is running.
  bool CanStall() const { return model_parallel_ != nullptr && stepping_ && !over_; }

  // ---- called by its ModelParallel ----
  Trainer* Find(uint32_t rank);  // null: it has ended
  bool over() const { return over_; }
  void AllArrived();
  void NoteLeftOut(uint32_t rank);
  // Whether data passes between these ranks now. Connections that are cut for too long break.
  bool DataArrives(const std::vector<uint32_t>& ranks);
  void BreakAll();

 private:
  void ScheduleStep();
  void TryStep();
  void AfterStep();
  void BeginSave();
  // `stopped`: the group ends before its last step. `begun`: the save before the end has begun.
  void SaveThenEnd(bool stopped, bool begun);
  // The last save has failed: retries it, because the ranks still have the state.
  void RetryLastSave();
  bool LastSaveFailed();
  // `unsaved`: why no checkpoint contains the last step (TrainerFinished.unsaved); empty: one does.
  void EndAll(bool stopped, const std::string& unsaved = "");
  // Returns whether the ranks have been disconnected for so long that their connections break.
  bool WaitWhileCut(bool connected);
  bool AnyFrozen() const;
  absl::Duration MaxResendDelay() const;
  Trainer* RankZero();

  World& world_;
  const GroupId id_;
  const uint32_t ranks_;
  const JobPlan plan_;
  std::map<uint32_t, Trainer*> trainers_;  // running
  uint64_t first_step_ = 1;
  uint64_t step_ = 0;
  bool stepping_ = false;
  bool over_ = false;
  bool leave_requested_ = false;
  bool chosen_ = false;
  uint64_t saving_ = 0;        // the step whose parts are being written; 0: none
  bool save_pending_ = false;  // another save must follow
  std::set<uint32_t> parts_;   // parts that have ended
  bool part_failed_ = false;   // of the current or newest save
  uint64_t retry_after_ = 0;   // steps between a failed save and the next try; 0: no save has failed
  uint64_t retry_at_ = 0;      // the step of the retry; 0: none
  absl::Duration last_pause_;  // pause before the last save is retried; zero: it has not failed
  absl::Time last_save_until_ = absl::InfiniteFuture();
  absl::Duration compute_time_;                    // of this step, for a rank that is not slow
  absl::Duration step_time_;                       // of this step, if no rank is slow
  std::unique_ptr<ModelParallel> model_parallel_;  // null: the model is not divided
  absl::Time step_began_ = absl::InfiniteFuture();
  absl::Time cut_since_ = absl::InfiniteFuture();
};

}  // namespace trainyard::sim
