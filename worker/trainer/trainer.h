// The loop of one rank: makes the steps, and between them evaluates, saves and leaves, at the same steps as every other
// rank. Read Trainer::Run first. One thread; the link and the saver have their own.
//
//   compute        micro-batches dealt to this rank, forward and backward
//   reduce         gradients. Reduction A, by which all ranks agree on losses and requests (agreement.h), is read for
//                  the step before and started for this step
//   update         after a save in progress has copied the state
//   [evaluate]     every N steps and after the last; may make this step the last (evaluation_policy.h)
//   [save]         begins every N steps, and after the best evaluation so far. After the last step and before leaving,
//                  all ranks wait for a save; a stop that needs this save is cancelled if it fails
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "worker/collectives/agreement.h"
#include "worker/saving/saver.h"
#include "worker/trainer/epoch_log.h"
#include "worker/trainer/evaluation_policy.h"
#include "worker/trainer/metrics_thread.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/step_log.h"
#include "worker/trainer/step_losses.h"

namespace trainyard {

struct TrainResult {
  uint64_t step = 0;     // the last step that was made
  bool stopped = false;  // before the job's last step, on request
  double loss = 0;       // of that step; 0 if none was made
  // Rank 0: why no checkpoint holds the job's last step. Empty: one does, or the last step was not made.
  std::string unsaved;
  bool lacks_save = false;  // rank 0: the save before leaving has failed, or its checkpoint has no name yet
  std::string ended_early;  // why training ended before the job's last step, a sentence; empty if it did not
};

// The time source of saves, which tests replace.
struct SaveTime {
  Clock& clock = Clock::GetSteadyClock();
  std::function<void(absl::Duration)> wait = nullptr;  // waits between two tries of the last save; null: sleeps
};

class Trainer {
 public:
  // Owns none of its arguments. `must_leave` is called in every step; it returns whether SIGTERM was received.
  Trainer(const StartOrder& order, Rank& rank, Link& link, FileSystem& file_system, std::ostream& log,
          std::function<bool()> must_leave, SaveTime time = {});

  // Makes every step from the restore point to the last. Possible errors: those of a Collective; Aborted if the run
  // folder has another owner; FailedPrecondition if losses stay not finite, or if parameters differ between ranks.
  absl::StatusOr<TrainResult> Run();

  Saver& saver() { return saver_; }
  // The step under way, or the last one that was made.
  uint64_t step() const { return step_; }

 private:
  absl::Status MakeStep();
  absl::Status CompareParameters();
  void EnterStep();
  absl::Status Compute();
  // The computing time of the step ends with what has been queued so far; the last call counts.
  void EndComputing();
  // Waits for the losses of the step, and adds them to `terms`. Returns the seconds that a GPU needed to compute; unset
  // on a CPU.
  std::optional<double> AwaitLosses(AgreementTerms& terms);
  Batch OnDevice(Batch batch) const;
  absl::Status HandleSkippedStep(const StepOutput& output);
  void StartAgreement(const AgreementTerms& terms);
  absl::Status ReadAgreement();
  // Returns whether this generation may change the run folder, as the newest check has found. Does no I/O.
  absl::Status CheckFence() const;
  // Waits a moment until the metrics of all steps so far are written, and the fence is checked once more.
  absl::Status AwaitMetrics();
  absl::Status Evaluate();
  absl::Status SaveAndLeave(bool last);
  absl::Status SaveLast();
  RunPosition Position() const;

  bool IsDue(uint64_t every) const { return every > 0 && step_ % every == 0; }
  uint64_t ConsumedSamples(uint64_t step) const;
  // The number of tokens with a loss in the samples of all ranks in the step under way, by which its gradients are
  // divided.
  uint64_t LossTokensOfStep() const;
  // Continues metrics.jsonl and the sums of the epoch under way, and starts the checks of the fence, on rank 0.
  void OpenMetrics();
  // How many epochs of the data the steps up to `step` have used; 0: the data has no end.
  double EpochsAfter(uint64_t step) const;
  void Write(absl::string_view metrics_line);
  // Logs that metrics could not be written, or had to wait, once for each such time.
  void LogMetricsWarning();
  void RecordMemory(StepRecord& record);

  const StartOrder& order_;
  const TrainConfig& config_;
  Rank& rank_;
  Link& link_;
  std::ostream& log_;
  const std::function<bool()> must_leave_;
  Saver saver_;

  std::unique_ptr<MetricsThread> metrics_;  // rank 0
  StepLog step_log_;                        // rank 0
  std::unique_ptr<EpochLog> epoch_log_;     // rank 0
  uint64_t step_;
  Agreement agreement_;
  at::Tensor terms_;                        // of the reduction under way
  std::unique_ptr<Collective> reduction_;   // null: none is under way
  StepRecord record_;                       // of the step whose reduction is under way
  StepLosses losses_;                       // of this rank in this step
  std::map<int64_t, int64_t> loss_tokens_;  // of this rank in this step, by micro-batch
  std::optional<int64_t> bad_micro_batch_;  // the first one of this rank in this step whose loss was not finite
  // Consecutive steps without an update, except those that lowered the loss scale or used up its hysteresis.
  uint64_t num_skipped_ = 0;
  bool leave_ = false;
  bool unsaved_ = false;              // the newest save before leaving has failed
  std::string why_unsaved_;           // rank 0: why the job's last step is not saved
  uint64_t last_cancelled_stop_ = 0;  // stop requests up to this number are cancelled: their save failed
  // The number of the stop request that is cancelled if the save before leaving fails; 0: all ranks leave in any case.
  uint64_t stop_needing_save_ = 0;
  WorkTotals work_;
  std::vector<MemoryUse> memory_;  // as reported last
  double last_loss_ = 0;
  EvaluationPolicy evaluations_;
};

}  // namespace trainyard
