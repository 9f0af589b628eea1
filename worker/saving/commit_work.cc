#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/fault_points.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "worker/saving/commit_state.h"

namespace trainyard {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);  // between two tries to read a part
constexpr absl::Duration kGrantWait = absl::Milliseconds(250);    // short, because another task may come
// Complete checkpoints that wait for a grant; a further one replaces one of them.
constexpr size_t kWaitingMax = 2;

// The loss of the evaluation after the step of a checkpoint; infinite: none.
double LossOf(const CommitTask& task) {
  const std::optional<ManifestEvaluation>& evaluation = task.head.evaluation;
  const std::optional<double> loss = evaluation.has_value() ? evaluation->loss : std::nullopt;
  return loss.value_or(std::numeric_limits<double>::infinity());
}

}  // namespace

void CommitThread::State::Fail(const CommitTask& task, const absl::Status& why, bool withdrawn) {
  if (task.quiet) {
    absl::MutexLock lock(&mu);
    quiet_failure =
        quiet_failure.ok() ? why : absl::Status(why.code(), absl::StrCat(why.message(), "; ", quiet_failure.message()));
    return;
  }
  if (absl::IsAborted(why)) return;  // the loop detects on its own that this generation is over
  deps.link.ReportFact(SaveFailedFact{.step = task.save.step,
                                      .message = std::string(why.message()),
                                      .stop_request = task.stop_request,
                                      .withdrawn = withdrawn});
  absl::MutexLock lock(&mu);
  if (!withdrawn) ++failed;
  lines.push_back(absl::StrCat("save of step ", task.save.step, withdrawn ? " was given up" : " failed",
                               ", training continues: ", why.message()));
}

void CommitThread::State::Remove(const SaveKey& save) {
  if (absl::IsAborted(deps.check_fence())) return;
  absl::Status removed = deps.file_system.RemoveAll(FolderOf(save));
  if (removed.ok()) return;
  AddLine(absl::StrCat("the partial folder of step ", save.step, " could not be removed: ", removed.message()));
}

void CommitThread::State::RemoveFailed(const SaveKey& save) {
  if (const absl::Status recreated = deps.recreate_folder == nullptr ? absl::OkStatus() : deps.recreate_folder();
      !recreated.ok()) {
    AddLine(std::string(recreated.message()));
    absl::MutexLock lock(&mu);
    if (quiet_failure.ok()) quiet_failure = recreated;
  }
  Remove(save);
}

absl::StatusOr<std::vector<CheckpointPart>> CommitThread::State::AwaitParts(const SaveKey& save) {
  const absl::Time until = deps.clock.TimeNow() + deps.part_patience;
  std::vector<CheckpointPart> all;
  while (all.size() < save.world_size) {
    absl::StatusOr<CheckpointPart> part = ReadCheckpointPart(FolderOf(save), all.size(), save);
    if (part.ok()) {
      all.push_back(*std::move(part));
      continue;
    }
    if (!absl::IsUnavailable(part.status()) || deps.clock.TimeNow() >= until) return part.status();
    absl::MutexLock lock(&mu);
    const bool must_end =
        changed.AwaitFor(&mu, kPollInterval, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return closing; });
    if (must_end) return absl::AbortedError("the rank is leaving");
  }
  return all;
}

size_t CommitThread::State::ChooseReplaced(const CommitTask& newest) const {
  double lowest = LossOf(newest);
  for (const Ready& ready : waiting) lowest = std::min(lowest, LossOf(ready.task));
  for (size_t i = 0; i < waiting.size(); ++i) {
    const CommitTask& task = waiting[i].task;
    const bool is_best = deps.retention.keep_best && std::isfinite(lowest) && LossOf(task) == lowest;
    if (!is_best && !deps.retention.IsMilestone(task.save.step)) return i;
  }
  return 0;
}

absl::StatusOr<CommitThread::State::Ready> CommitThread::State::Complete(CommitTask task) {
  const std::string folder = FolderOf(task.save);
  ASSIGN_OR_RETURN(std::vector<CheckpointPart> all, AwaitParts(task.save));
  RETURN_IF_ERROR(AssembleManifest(all, task.tensors, task.head))
      << "while assembling the checkpoint of step " << task.save.step;
  if (std::string line = deps.describe_data(task.head.data); !line.empty()) AddLine(std::move(line));
  RETURN_IF_ERROR(deps.check_fence());
  RETURN_IF_ERROR(RemoveCheckpointParts(folder, task.save.world_size, deps.file_system));
  const std::string text = ManifestText(task.head);
  RETURN_IF_ERROR(WriteManifest(folder, text, deps.file_system));
  Ready ready{.manifest_hash = ManifestHash(text), .size_bytes = text.size(), .complete = deps.clock.TimeNow()};
  for (const ManifestFile& file : task.head.files) ready.size_bytes += file.bytes;
  ready.task = std::move(task);
  return ready;
}

void CommitThread::State::CommitOne(CommitTask task) {
  const CommitTask copy{.save = task.save, .stop_request = task.stop_request, .quiet = task.quiet};
  absl::StatusOr<Ready> ready = Complete(std::move(task));
  if (absl::Status fault = FaultPoint("ready"); ready.ok() && !fault.ok()) ready = fault;
  if (!ready.ok()) {
    const absl::Status why = WithFreeSpace(ready.status(), deps.run_folder);
    if (!absl::IsAborted(why)) RemoveFailed(copy.save);
    return Fail(copy, why);
  }
  if (waiting.size() == kWaitingMax) {
    const auto replaced = waiting.begin() + static_cast<ptrdiff_t>(ChooseReplaced(ready->task));
    Remove(replaced->task.save);
    Fail(replaced->task,
         absl::UnavailableError(
             absl::StrCat("it was complete, but the coordinator did not answer for so long that step ", copy.save.step,
                          " replaced it")),
         /*withdrawn=*/true);
    waiting.erase(replaced);
  }
  deps.link.ReportFact(SaveReadyFact{.step = copy.save.step,
                                     .path = JoinPath(deps.run_folder, StepFolderName(copy.save.step)),
                                     .manifest_hash = ready->manifest_hash,
                                     .size_bytes = ready->size_bytes});
  waiting.push_back(*std::move(ready));
  absl::MutexLock lock(&mu);
  num_waiting = waiting.size();
  newest_complete = copy.save.step;
  changed.SignalAll();
}

bool CommitThread::State::RequestGrant() {
  const Ready& oldest = waiting.front();
  const uint64_t step = oldest.task.save.step;
  absl::Status grant = deps.link.AwaitGrant(step, oldest.manifest_hash, kGrantWait);
  bool ungranted = false, pause = false;
  {
    absl::MutexLock lock(&mu);
    ungranted = without_grant && absl::IsDeadlineExceeded(grant);
    // Avoids a busy loop if the link answers immediately.
    pause = absl::IsDeadlineExceeded(grant) && !ungranted && !closing && tasks.empty();
    if (pause) {
      changed.AwaitFor(&mu, kPollInterval,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return closing || without_grant || !tasks.empty(); });
    }
    if (absl::IsAborted(grant)) generation_ended = true;
  }
  if (absl::IsDeadlineExceeded(grant) && !ungranted) return false;
  Ready ready = std::move(waiting.front());
  waiting.pop_front();
  if (grant.ok() || ungranted) {
    if (ungranted) AddLine(absl::StrCat("step ", step, " is named without a grant: the coordinator does not answer"));
    Name(std::move(ready));
  } else if (!absl::IsAborted(grant)) {
    Remove(ready.task.save);
    Fail(ready.task, grant);
    absl::MutexLock lock(&mu);
    if (newest_complete == step) newest_complete = step - 1;  // else a newer one is complete and waits for its grant
  }
  absl::MutexLock lock(&mu);
  num_waiting = waiting.size();
  changed.SignalAll();
  return true;
}

void CommitThread::State::Name(Ready ready) {
  const CommitTask& task = ready.task;
  const std::string folder = FolderOf(task.save);
  const std::string path = JoinPath(deps.run_folder, StepFolderName(task.save.step));
  auto name = [&]() -> absl::Status {
    RETURN_IF_ERROR(FaultPoint("grant"));
    RETURN_IF_ERROR(deps.check_fence());
    RETURN_IF_ERROR(PublishFolder(folder, path, deps.file_system));
    FaultPoint("commit").IgnoreError();  // the checkpoint has its name, so the save can no longer fail
    return absl::OkStatus();
  };
  if (absl::Status named = name(); !named.ok()) {
    named = WithFreeSpace(std::move(named), deps.run_folder);
    if (!absl::IsAborted(named)) RemoveFailed(task.save);
    return Fail(task, named);
  }
  Remove(task.save);  // if a checkpoint had this name before, PublishFolder has moved it to `folder`
  const absl::Time now = deps.clock.TimeNow();
  const double seconds = absl::ToDoubleSeconds(ready.complete - task.began);
  AddLine(absl::StrFormat("saved step %d in %.3f s (training waited %.3f s, the grant took %.3f s): %s (%.1f MB)",
                          task.save.step, seconds, task.waited ? seconds : absl::ToDoubleSeconds(task.stalled),
                          absl::ToDoubleSeconds(now - ready.complete), path,
                          static_cast<double>(ready.size_bytes) / 1e6));
  std::optional<double> stall_s;
  if (!task.waited) stall_s = absl::ToDoubleSeconds(task.stalled);
  const uint64_t fact = deps.link.ReportFact(SavedFact{.step = task.save.step,
                                                       .path = path,
                                                       .manifest_hash = ready.manifest_hash,
                                                       .size_bytes = ready.size_bytes,
                                                       .seconds = seconds,
                                                       .stall_s = std::move(stall_s)});
  absl::MutexLock lock(&mu);
  newest_named = task.save.step;
  reported.push_back({.fact = fact, .step = task.save.step});
}

void CommitThread::State::Prune(uint64_t step) {
  if (!deps.check_fence().ok()) return;
  absl::StatusOr<std::vector<uint64_t>> removed =
      PruneCheckpoints(deps.run_folder, step, deps.retention, {step}, deps.file_system, deps.check_fence);
  if (absl::IsAborted(removed.status())) return;  // a later generation has claimed the folder meanwhile
  if (!removed.ok()) AddLine(absl::StrCat("old checkpoints could not be removed: ", removed.status().message()));
  // Removes partial folders of earlier generations, whose ranks may have written until they noticed the new fence.
  for (std::string& line : SweepPartials(deps.run_folder, deps.generation, deps.file_system, deps.check_fence)) {
    AddLine(std::move(line));
  }
}

}  // namespace trainyard
