#include "worker/trainer/run.h"
#include "models/model_description.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/diagnostics/event_log.h"
#include "worker/trainer/device.h"
#include "worker/trainer/probe.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/restore.h"
#include "worker/trainer/run_folder.h"
#include "worker/trainer/trainer.h"

namespace trainyard {
namespace {

// How long to wait for the last save to be confirmed, so that checkpoints beyond `keep` can be removed before the end.
constexpr absl::Duration kConfirmWait = absl::Seconds(2);
// How long a rank that has made all steps waits for the acknowledgement of its last report: its daemon or the
// coordinator may be restarting, and an exit without that report would restart the group.
constexpr absl::Duration kDoneWait = absl::Minutes(10);
constexpr absl::Duration kDoneWaitSlice = absl::Milliseconds(100);

void AwaitConfirmation(const RunOptions& options, uint64_t fact) {
  for (int64_t slices = kDoneWait / kDoneWaitSlice; slices > 0; --slices) {
    if (options.must_leave() || options.link.AwaitAcknowledged(fact, kDoneWaitSlice)) return;
    if (!options.link.abort_status().ok()) return;
  }
}

absl::Status Train(const StartOrder& order, const RunOptions& options, Rank& rank, uint64_t& step,
                   uint64_t& finished_fact) {
  Link& link = options.link;
  link.ReportFact(ReadyFact{.first_step = rank.restored_step + 1, .parameters = CountParameters(order.config.model)});
  link.ReportProgress(Phase::kReady, rank.restored_step);
  RETURN_IF_ERROR(link.AwaitGo(options.must_leave));

  Trainer trainer(order, rank, link, options.file_system, options.log, options.must_leave,
                  {.clock = options.clock, .wait = options.wait});
  absl::StatusOr<TrainResult> result = trainer.Run();
  step = trainer.step();
  RETURN_IF_ERROR(result);
  link.ReportProgress(Phase::kEnded, result->step);
  if (const std::string memory = MemoryText(rank.device); !memory.empty()) options.log << memory << std::endl;
  if (order.rank == 0 && !result->ended_early.empty()) options.log << result->ended_early << std::endl;
  finished_fact = link.ReportFact(FinishedFact{.step = result->step,
                                               .stopped = result->stopped,
                                               .loss = result->loss,
                                               .unsaved = result->unsaved,
                                               .ended_early = result->ended_early});
  if (order.rank == 0) {
    trainer.saver().MaintainAtEnd(kConfirmWait);
    options.log << (result->stopped ? "stopped" : "finished") << " after step " << result->step;
    if (result->step > rank.restored_step) options.log << ", loss " << result->loss;
    if (!result->unsaved.empty()) {
      options.log << "; no checkpoint holds this step: " << result->unsaved;
    } else if (result->lacks_save) {
      options.log << "; no checkpoint holds this step yet";
    }
    options.log << std::endl;
  }
  return absl::OkStatus();
}

// Called however the run ended. A failure causes a warning and does not fail the job.
void WriteEvents(const StartOrder& order, const Rank& rank, std::ostream& log) {
  if (rank.events == nullptr) return;
  // A generation that is fenced off must not change the folder.
  if (!CheckFenceOf(order.config.checkpoint_dir, order.job_id, order.generation).ok()) return;
  absl::Status status = WriteTrace(*rank.events, order.config.checkpoint_dir, order.rank, order.host);
  if (!status.ok()) log << "warning: diagnostics.events: no trace is written: " << status.message() << std::endl;
}

}  // namespace

TrainerExit ReportFailure(const absl::Status& status, uint64_t step, Link& link, std::ostream& log) {
  log << status.message() << std::endl;
  if (IsCheckpointMissing(status)) {
    link.ReportFact(RefusedFact{.message = std::string(status.message()), .checkpoint_missing = true});
    return kExitFailed;
  }
  if (const uint64_t later = EndedLaterGeneration(status); later > 0) {
    link.ReportFact(RefusedFact{.message = std::string(status.message()), .later_generation = later});
    return kExitAborted;
  }
  // Nothing is refused: the job can run on a host whose GPUs work.
  if (IsGpuMissing(status)) return kExitCannotRun;
  // The exit code depends on who must act: a peer or the group, this process, or the author of the job.
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return kExitAborted;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      if (!link.abort_status().ok()) return kExitAborted;
      link.ReportFact(BrokenFact{.step = step, .message = std::string(status.message())});
      return kExitAborted;
    // A full disk or a lack of memory may pass, so a restart is worth a try.
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kCancelled:
      return kExitFailed;
    default:
      link.ReportFact(RefusedFact{.message = std::string(status.message())});
      return kExitRefused;
  }
}

TrainerExit RunRank(const StartOrder& order, const RunOptions& options) {
  if (order.config.probe.has_value()) return RunProbe(order, options);
  uint64_t step = 0;
  absl::StatusOr<std::unique_ptr<Rank>> rank =
      PrepareRank(order, options.link, options.file_system, options.log, options.ledger, options.sizes_of_spec);
  if (!rank.ok()) return ReportFailure(rank.status(), step, options.link, options.log);
  uint64_t finished_fact = 0;
  absl::Status status = Train(order, options, **rank, step, finished_fact);
  WriteEvents(order, **rank, options.log);
  if (!status.ok()) return ReportFailure(status, step, options.link, options.log);
  rank->reset();  // releases the memory and the run folder before the wait
  AwaitConfirmation(options, finished_fact);
  return kExitDone;
}

}  // namespace trainyard
