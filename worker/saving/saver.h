// Saves the state of a rank. Begins saves at the steps that all ranks agree on (save_policy.h), has its part written in
// the background (save_thread.h), shares the outcome with the other ranks by the sum of every step (reduction A,
// worker/collectives/agreement.h), and on rank 0 turns the parts of all ranks into checkpoints (commit_thread.h). A
// save that fails is reported and retried while training continues. README.md shows the states of a save and the
// threads.
//
//   saver.Prepare();                    before the first step: allocates memory, if there is enough
//   each step:
//     saver.Update(step, ..., sum);     the result of the previous step's reduction A
//     saver.AddTerms(terms);            to this step's reduction A
//     saver.WaitForCopy();              right before the optimizer's update
//     saver.AtBoundary(step, ...);      after the update
//   saver.SaveAndWait(step, ...);       before leaving
//   saver.Finish(...);                  rank 0: waits until the checkpoint is named (renamed to step-N, once granted)
//   saver.SaveLast(step, ...);          at the job's last step: waits until the checkpoint is named; retries failures
//   saver.DropSnapshots();              when the rank ends as intended
//
// Used by the loop's thread only. Does not own what it is given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "common/clock.h"
#include "worker/collectives/agreement.h"
#include "worker/collectives/communicator.h"
#include "worker/data/corpus.h"
#include "worker/diagnostics/ledger.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/parallel/parallel_state.h"
#include "worker/saving/commit_thread.h"
#include "worker/saving/device_copies.h"
#include "worker/saving/gathered_state.h"
#include "worker/saving/save_head.h"
#include "worker/saving/save_policy.h"
#include "worker/saving/save_thread.h"

namespace trainyard {

class Saver {
 public:
  struct Deps {
    const StartOrder& order;
    std::shared_ptr<const Corpus> corpus;
    ParallelState& state;
    Communicator& world;
    Link& link;
    FileSystem& file_system;
    std::ostream& log;
    // Content hash of the data of the restored checkpoint; empty if the run began from scratch.
    std::string restored_content_hash;
    // OK while this generation owns the run folder; see [Note: fence] in run_folder.h. Called by several threads, which
    // may outlive the rank: it must own what it uses.
    std::function<absl::Status()> check_fence;
    Ledger* ledger = nullptr;  // accounts for the memory for copies
    Clock& clock = Clock::GetSteadyClock();
    // How rank 0 waits between two tries of the last save; null: it sleeps.
    std::function<void(absl::Duration)> wait = nullptr;
    // Recreates the run folder if it was removed. Called by another thread, which may outlive the rank.
    std::function<absl::Status()> recreate_folder = nullptr;
  };
  explicit Saver(Deps deps);
  ~Saver();

  using Position = RunPosition;

  // Collective. Allocates memory for copies: in shared memory, which outlives this trainer; if there is not enough of
  // it on some rank, one private copy; if there is no memory for that on some rank either, training waits for every
  // save. If saves are made only on request, decides whether there is memory for a copy and allocates none. Logs a
  // warning if memory is missing. Possible errors: those of a Collective.
  absl::Status Prepare();
  // Removes the snapshots. Called when the rank has completed its work and no process will need them.
  void DropSnapshots();

  // Whether a save is under way, which the next Update may commit.
  bool IsSaving() const { return under_way_ != nullptr; }

  void AddTerms(AgreementTerms& terms) const;
  // `sum` is over the terms of step `of_step`.
  void Update(uint64_t step, uint64_t of_step, const AgreementTerms& sum);
  void WaitForCopy();

  // Begins a save, waits for the save under way, or does nothing. Collective if a save is waited for, and if parameters
  // are gathered (checkpoint.format full, checkpoint.weights_copy). `due`: by checkpoint.every_steps, or because the
  // evaluation loss is the lowest so far. Possible errors: those of a Collective.
  absl::Status AtBoundary(uint64_t step, const Position& position, bool due);
  // Whether AtBoundary, if called now, makes a save that training waits for. The same on all ranks.
  bool MakesWaitedSave(uint64_t step, bool due) const { return !copies_ && policy_.WantsSave(step, due); }

  // Collective. Ends the save under way, then saves the state after `step`. Returns whether every rank's part is
  // written, which is the same on all ranks. `stop_request` (0: none) is the stop that is cancelled if this save fails;
  // if it is set, the result is whether the checkpoint is complete. Possible errors: those of a Collective.
  absl::StatusOr<bool> SaveAndWait(uint64_t step, const Position& position, uint64_t stop_request);

  // Callbacks of the last save. Called by the loop's thread.
  struct LastSaveHooks {
    std::function<void(Phase)> enter = {};       // reports the phase that begins
    std::function<bool()> leaves = {};           // whether this rank must leave
    std::function<StopRequest()> new_stop = {};  // rank 0: a stop that was not acted on yet; number 0: none
  };
  struct LastSave {
    // The same on all ranks, unless a rank had to leave before the checkpoint was named: then only rank 0 may set it.
    bool saved = false;
    // On rank 0: why the state is still not saved when the time for retries is over. Empty: it is saved, or the ranks
    // leave for another reason.
    std::string unsaved = {};
  };
  // Collective. Saves the state after the job's last step, and returns when the checkpoint is named. If that fails, all
  // ranks keep the state (the weights exist nowhere else) and retry after 1, 2, 4, ... at most 30 seconds, for
  // checkpoint.last_save_retry_s. A stop, or a rank that must leave, ends the retries. Possible errors: those of a
  // Collective; Aborted if this generation no longer owns the run folder, or has ended.
  absl::StatusOr<LastSave> SaveLast(uint64_t step, const Position& position, const LastSaveHooks& hooks);

  // Rank 0, at the end: waits until all saved checkpoints are named, or `leaves` returns true. Ten minutes after all of
  // them are complete, they are named without a grant.
  void Finish(const std::function<bool()>& leaves);
  // Removes old checkpoints for which the coordinator has confirmed newer ones, and logs the lines of the commit
  // thread. Cheap when there is nothing new.
  void Maintain();
  // First waits up to `limit` for the last save to be confirmed. Then does the same as Maintain, and waits for the
  // removal of old checkpoints.
  void MaintainAtEnd(absl::Duration limit);

  // Seconds that the loop has waited for saves since the last call.
  double TakeStallSeconds();

  // The same on all ranks: the step of the last save that every rank has written (0: none), and the number of commits
  // that have failed.
  uint64_t newest_written() const { return newest_written_; }
  uint64_t failed_commits() const { return failed_commits_; }

 private:
  struct UnderWay;
  struct StateBytes;

  // Time between two sums of a wait: long enough to cost nothing, short enough that the ranks do not seem to hang.
  static constexpr absl::Duration kSlice = absl::Milliseconds(500);

  absl::StatusOr<StateBytes> MeasureState();
  SaveMemoryPlan PlanFor(const StateBytes& state) const;
  // Collective. Sets copies_ to whether every rank has memory for a copy; if not, rank 0 logs a warning.
  absl::Status AgreeOnCopies(const StateBytes& state, bool has_copy);
  // Collective. Returns whether all ranks have two copies in shared memory.
  absl::StatusOr<bool> ShareMemory(const StateBytes& state, const SaveMemoryPlan& plan);
  // Collective. Returns the number of ranks for which `lacks` is true.
  absl::StatusOr<int> CountRanks(bool lacks);
  SnapshotPlace Place() const;
  absl::Status Begin(uint64_t step, const Position& position, bool waited, uint64_t stop_request);
  std::vector<TensorHeader> TensorsOfSave() const;
  WholeFiles WantedFiles() const;
  // Passes the sums to the policy, and commits or discards the save under way if it has ended.
  void ApplySums(uint64_t step, const SavePolicy::Sums& sums);
  // Logs and reports a failed save after which training continues.
  void ReportFailure(uint64_t step, const std::string& why, uint64_t stop_request);
  // Collective. Waits until no save is under way, or rank 0 has waited for `patience`.
  absl::Status AwaitUnderWay(uint64_t step, absl::Duration patience);
  // Collective, for the last save. Waits until the commit has ended; returns false if a rank must leave first.
  absl::StatusOr<bool> AwaitName(const LastSaveHooks& hooks);
  // Why the last try failed on this rank, as a sentence; empty: it did not fail.
  std::string TakeLastFailure(uint64_t step, bool written);
  // Reports a failed try, on rank 0.
  void ReportLastFailure(uint64_t step, const std::string& why, bool will_retry, const LastSaveHooks& hooks);
  // Returns whether all ranks try again, after `delay` has passed and the files of the failed try are removed.
  absl::StatusOr<bool> AwaitNextTry(absl::Duration delay, const LastSaveHooks& hooks);
  // Collective. Returns whether rank 0 completed the checkpoint of `step` within checkpoint.timeout_s.
  absl::StatusOr<bool> AwaitComplete(uint64_t step, uint64_t stop_request);
  // How this rank's part of the save under way ended. None: it has not ended, or it is not the last save and no other
  // save could begin, because too many commits are queued. Waits up to `patience` for space in that queue.
  std::optional<SaveEnd> Ended(absl::Duration patience = absl::ZeroDuration()) const;
  // Sums terms_ over all ranks.
  absl::Status SumTerms();
  bool GivesUp() const;

  const Deps deps_;
  const TrainConfig& config_;
  SavePolicy policy_;
  SaveThread thread_;
  std::unique_ptr<CommitThread> commits_;  // rank 0
  std::vector<StateEntry> tensors_;        // the whole tensors of the job
  std::unique_ptr<UnderWay> under_way_;    // null: none
  bool copies_ = true;                     // saves are copied, so that training continues while they are written
  bool shares_ = false;                    // the copies are in shared memory and outlive this process
  bool reported_unsealed_ = false;         // warned about a copy that will not outlive this process
  bool reported_beyond_range_ = false;     // warned about values beyond the range of a copy's type
  bool written_ = false;                   // the last save that has ended was written
  uint64_t newest_written_ = 0;
  uint64_t failed_commits_ = 0;
  int last_try_ = 0;          // the current try of the job's last save, counted from 1; 0: before the last save
  std::string last_failure_;  // of this rank's part in the current try of the last save
  GatheredState gathered_;
  DeviceCopies device_copies_;
  TrackedMemory held_;      // memory for copies
  absl::Duration stalled_;  // since the last TakeStallSeconds
  at::Tensor terms_;        // summed while the ranks wait for a save
};

}  // namespace trainyard
