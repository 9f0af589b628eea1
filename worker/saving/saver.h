// A rank's side of saving: begins saves at the steps that all ranks agree on (save_policy.h), has its part written in
// the background (save_thread.h), tells the others by reduction A how that went, and on rank 0 has checkpoints made of
// what all have written (commit_thread.h). A save that fails is told, and tried again; training goes on.
//
//   saver.Prepare();                    before the first step: memory, and whether there is any
//   each step:
//     saver.Update(step, ..., sum);       what reduction A of the step before came to
//     saver.AddTerms(terms);            to this step's
//     saver.WaitForCopy();                    right before the optimizer
//     saver.AtBoundary(step, ...);      behind it
//   saver.SaveAndWait(step, ...);       before leaving
//   saver.Finish(...);                  rank 0: until that has its name
//   saver.SaveLast(step, ...);          at the job's last step: until it has its name, and again where it fails
//   saver.DropSnapshots();              once the rank ends as it should
//
// Belongs to the loop's thread; owns nothing it is given.
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
#include "worker/parallel/data_parallel.h"
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
    const Corpus& corpus;
    DataParallel& strategy;
    Communicator& world;
    Link& link;
    FileSystem& file_system;
    std::ostream& log;
    // Of the checkpoint that was restored; empty when the run began anew.
    std::string restored_content_hash;
    // OK while the run folder is this generation's; see [Note: fence] in run_folder.h. Called by several threads.
    std::function<absl::Status()> check_fence;
    Ledger* ledger = nullptr;  // gets the memory for copies
    Clock& clock = Clock::GetSteadyClock();
    // How rank 0 waits between two tries of the last save; null: it sleeps.
    std::function<void(absl::Duration)> wait = nullptr;
    // Makes the run folder again if somebody has removed it. Called by another thread.
    std::function<absl::Status()> recreate_folder = nullptr;
  };
  explicit Saver(Deps deps);
  ~Saver();

  using Position = DataPosition;

  // Collective. Takes memory for copies: in shared memory, which outlives this trainer; where some rank has no room
  // there, one private copy; where some rank has none for that, saves are waited for. Less than the best is told by the
  // log. Possible errors: those of a Collective.
  absl::Status Prepare();
  // Nobody will want them: the rank has done what it was to do.
  void DropSnapshots();

  void AddTerms(AgreementTerms& terms) const;
  // `sum` is of the terms of `of_step`.
  void Update(uint64_t step, uint64_t of_step, const AgreementTerms& sum);
  void WaitForCopy();

  // Begins a save, waits for the one under way, or does nothing. Collective where one is waited for, and where
  // parameters are gathered (checkpoint.format full). `due`: by checkpoint.every_steps. Possible errors: those of a
  // Collective.
  absl::Status AtBoundary(uint64_t step, const Position& position, bool due);

  // Collective: ends the save under way, then saves the state as it is after `step`; returns whether every rank's part
  // is written, the same on all ranks. `stop_request` is of the stop that is off where that fails, 0: there is none;
  // with it, whether the checkpoint is complete. Possible errors: those of a Collective.
  absl::StatusOr<bool> SaveAndWait(uint64_t step, const Position& position, uint64_t stop_request);

  // What the last save asks its surroundings while it runs. Called by the loop's thread.
  struct LastSaveHooks {
    std::function<void(Phase)> enter = {};       // reports the phase that begins
    std::function<bool()> leaves = {};           // this rank must leave
    std::function<StopRequest()> new_stop = {};  // rank 0: one that nobody has acted on; number 0: none
  };
  struct LastSave {
    bool saved = false;        // the same on all ranks
    std::string unsaved = {};  // rank 0: why not, where tries are over. Empty: the ranks leave for another reason
  };
  // Collective: saves the state after the job's last step, and returns once the checkpoint has its name. Where it fails
  // all ranks keep the state and try again, after 1, 2, 4, ... at most 30 seconds, for
  // checkpoint.last_save_retry_s: the weights are nowhere else. A stop, and a rank that must leave, end that. Possible
  // errors: those of a Collective; Aborted: the run folder, or the generation, is no longer ours.
  absl::StatusOr<LastSave> SaveLast(uint64_t step, const Position& position, const LastSaveHooks& hooks);

  // Rank 0, at the end: until all that was saved has its name, or `leaves` says that there is no time for that. After
  // ten minutes without the coordinator's word it gets it without.
  void Finish(const std::function<bool()>& leaves);
  // Removes what need not stay, as far as the coordinator has confirmed newer ones; tells the log what other threads
  // have to say. Cheap when there is nothing new.
  void Tend();
  // The same, but waits up to `limit` for the last save to be confirmed and what need not stay to be gone.
  void TendAtEnd(absl::Duration limit);

  // Seconds that the loop has waited for saves since the last call.
  double TakeStallSeconds();

 private:
  struct UnderWay;
  struct StateBytes;

  // Between two sums of a wait: long enough to cost nothing, short enough that nobody takes the ranks for hung.
  static constexpr absl::Duration kSlice = absl::Milliseconds(500);

  std::string NoteDataOf(const ManifestData& data) const;
  absl::StatusOr<StateBytes> MeasureState();
  // Whether all ranks have two copies in shared memory. Collective.
  absl::StatusOr<bool> ShareMemory(const StateBytes& state, const SaveRoom& room);
  // How many ranks lack what they should have. Collective.
  absl::StatusOr<int> CountLacking(bool lacks);
  SnapshotPlace Place() const;
  absl::Status Begin(uint64_t step, const Position& position, bool waited, uint64_t stop_request);
  std::vector<TensorHeader> TensorsOfSave() const;
  WholeFiles Wanted() const;
  void Settle(uint64_t step, const SavePolicy::Sums& sums);
  // Collective: waits until no save is under way, or rank 0 has waited for so long.
  absl::Status AwaitUnderWay(uint64_t step, absl::Duration patience);
  // Collective, of the last save. Whether the ranks are still all there; if so, the commit has ended.
  absl::StatusOr<bool> AwaitName(const LastSaveHooks& hooks);
  // What of the last try has failed on this rank, as a sentence; empty: nothing.
  std::string TakeLastFailure(uint64_t step, bool written);
  // Reports a try that failed, on rank 0.
  void ReportLastFailure(uint64_t step, const std::string& why, bool will_retry, const LastSaveHooks& hooks);
  // Whether all are to try again, once `delay` has passed and nothing is left of the try before.
  absl::StatusOr<bool> AwaitNextTry(absl::Duration delay, const LastSaveHooks& hooks);
  // Collective: what rank 0's commit of `step` has come to.
  absl::StatusOr<bool> AwaitComplete(uint64_t step);
  // How this rank's part has ended, so that another save could begin; none: it has not, or what it leads to piles up.
  std::optional<SaveEnd> Ended() const;
  // Over all ranks, of terms_.
  absl::Status AddUp();
  bool GivesUp() const;

  const Deps deps_;
  const TrainConfig& config_;
  SavePolicy policy_;
  SaveThread thread_;
  std::unique_ptr<CommitThread> commits_;  // rank 0
  std::unique_ptr<UnderWay> under_way_;    // null: none
  bool copies_ = true;
  bool shares_ = false;             // copies outlive this process
  bool reported_unsealed_ = false;  // that one does not
  bool reported_beyond_range_ = false;
  bool written_ = false;  // the last save that was settled
  int last_try_ = 0;      // of the job's last save, counted from 1; 0: it has not come to that
  std::string last_failure_;
  GatheredState gathered_;
  DeviceCopies device_copies_;
  TrackedMemory held_;      // for copies
  absl::Duration stalled_;  // since the last TakeStallSeconds
  at::Tensor terms_;        // of a wait
};

}  // namespace trainyard
