// Checkpoints: a finished save becomes the step to restart from; a failed one is told and training goes on; a restore
// that fell back to an older one takes the younger ones out of the record.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/goodput.h"

namespace trainyard {
namespace {

// With checkpoint.keep 0 every one is kept on disk; the record names the newest of them.
constexpr int kCheckpointsRecorded = 1'000;
constexpr size_t kHashBytes = 256;

void EraseFrom(v1::Job& head, int first) {
  head.mutable_checkpoints()->DeleteSubrange(first, head.checkpoints_size() - first);
}

// Index of the first recorded checkpoint whose step is at least `step`.
int FirstAt(const v1::Job& head, uint64_t step) {
  int index = head.checkpoints_size();
  while (index > 0 && head.checkpoints(index - 1).step() >= step) --index;
  return index;
}

void Saved(Turn& turn, Job& job, const v1::CheckpointSaved& saved) {
  v1::Job& head = job.head();
  if (saved.path().size() > limits::kPathBytes || saved.manifest_hash().size() > kHashBytes) {
    turn.Notice(job, "error",
                absl::StrCat("rank 0 tells of a checkpoint of step ", saved.step(),
                             " whose path or hash is longer than any; it is not recorded"));
    return;
  }
  // A generation saves forward only: what is not above its newest was told before, also if it was dropped since.
  if (head.checkpoints_size() > 0) {
    const v1::CheckpointInfo& newest = head.checkpoints(head.checkpoints_size() - 1);
    if (newest.generation() == head.generation() && saved.step() <= newest.step()) return;
  }
  // A younger one can only be of an earlier generation, which did not get to restart from it.
  EraseFrom(head, FirstAt(head, saved.step()));
  v1::CheckpointInfo& info = *head.add_checkpoints();
  info.set_step(saved.step());
  info.set_generation(head.generation());
  info.set_path(saved.path());
  info.set_manifest_hash(saved.manifest_hash());
  info.set_size_bytes(saved.size_bytes());
  info.set_recorded_unix_ms(absl::ToUnixMillis(turn.wall));
  uint32_t keep = head.spec().checkpoint().keep();
  int most = keep == 0 ? kCheckpointsRecorded : static_cast<int>(std::min<uint32_t>(keep, kCheckpointsRecorded));
  if (head.checkpoints_size() > most) head.mutable_checkpoints()->DeleteSubrange(0, head.checkpoints_size() - most);
  job.longest_s = std::max(job.longest_s, saved.seconds());
  AccountGoodput(turn, job);
  StepsSaved(*job.record.mutable_goodput());
  turn.Save(job);
  turn.Emit(SaveCounted{.failed = false, .seconds = saved.seconds()});
  v1::Event event;
  *event.mutable_checkpoint() = head.checkpoints(head.checkpoints_size() - 1);
  turn.Tell(job, std::move(event));
}

void SaveFailed(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed) {
  turn.Emit(SaveCounted{.failed = true, .seconds = 0});
  turn.Notice(job, "error",
              absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(), " could not save step ",
                           failed.step(), ": ", CutText(failed.message(), 4096), "; training goes on"));
  turn.Warn(absl::StrCat("job ", job.id.value(), ": saving step ", failed.step(),
                         " failed: ", CutText(failed.message(), 1024)));
  // It was the save before a stop, and the ranks have gone on; unless somebody wanted more than that stop since.
  bool undone = failed.stop_request() != 0 && failed.stop_request() == job.record.stop_requests() && job.stop &&
                job.state() == v1::JOB_STATE_STOPPING && !job.nothing_desired && !job.record.cancelled() &&
                !job.record.has_failure();
  if (!undone) return;
  UndoStop(turn, job, absl::StrCat("step ", failed.step(), " could not be saved: ", CutText(failed.message(), 1024)));
}

void Restored(Turn& turn, Job& job, const v1::RestorePoint& restored) {
  job.record.set_restored_step(restored.step());
  // A job that goes on from what another one left has made those steps, though nobody was told of them here.
  job.head().set_last_step(std::max(job.head().last_step(), restored.step()));
  turn.Save(job);
  int younger = FirstAt(job.head(), restored.step() + 1);
  if (younger < job.head().checkpoints_size()) {
    turn.Notice(job, "warning",
                absl::StrCat("the checkpoint of step ", job.head().checkpoints(younger).step(),
                             " could not be used; restored from step ", restored.step(), ", ", restored.path()));
    EraseFrom(job.head(), younger);
  } else {
    turn.Notice(job, "info", absl::StrCat("restored from step ", restored.step(), ", ", restored.path()));
  }
}

}  // namespace

void ApplyCheckpointFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact) {
  switch (fact.kind_case()) {
    case v1::Fact::kSaved:
      Saved(turn, job, fact.saved());
      break;
    case v1::Fact::kSaveFailed:
      SaveFailed(turn, job, rank, fact.save_failed());
      break;
    default:
      // Rank 0 chooses the restart point for all; the others would only say the same again.
      if (rank.record.rank() == 0) Restored(turn, job, fact.restored());
  }
}

}  // namespace trainyard
