#include "coordinator/handlers/checkpoint_facts.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/last_save.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

// With checkpoint.keep 0 all checkpoints stay on disk; the record names at most this many of the newest.
constexpr int kCheckpointsRecorded = 1'000;
// A script may save at every step, and each write of the job's record writes all recorded checkpoints again.
constexpr int kScriptCheckpointsRecorded = 20;
// The number of changed keys that are published for a resumed job; the log of its trainers has all of them.
constexpr int kChangesPublished = 32;

void EraseFrom(v1::Job& head, int first) {
  head.mutable_checkpoints()->DeleteSubrange(first, head.checkpoints_size() - first);
}

// Returns the index of the first recorded checkpoint whose step is at least `step`.
int FirstAt(const v1::Job& head, uint64_t step) {
  int index = head.checkpoints_size();
  while (index > 0 && head.checkpoints(index - 1).step() >= step) --index;
  return index;
}

// Returns how many of the newest recorded checkpoints the record keeps: at most `limit`, and only as many as fit into
// kCheckpointRecordBytes. The newest one is always kept, because a restart needs it.
int CountKept(const v1::Job& head, int limit) {
  int kept = 0;
  size_t bytes = 0;
  for (int i = head.checkpoints_size() - 1; i >= 0 && kept < limit; --i) {
    bytes += head.checkpoints(i).ByteSizeLong();
    if (kept > 0 && bytes > limits::kCheckpointRecordBytes) break;
    ++kept;
  }
  return kept;
}

// Records the grant or refusal of a complete checkpoint. The host of rank 0 receives it once the record is durable.
void SaveReady(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointReady& ready) {
  CheckpointGrants& grants = *job.record.mutable_grants();
  std::optional<v1::CheckpointGrant> grant = DecideGrant(job.head(), grants, ready);
  if (!grant.has_value()) return;  // a repeated request
  grant->set_time_unix_ms(absl::ToUnixMillis(turn.wall));
  if (grant->refused()) {
    turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kWarning,
                absl::StrCat("the checkpoint of step ", grant->step(), " that rank 0 on ", rank.record.host(),
                             " has completed is refused: ", grant->reason()));
  } else {
    turn.Info(absl::StrCat("job ", job.id.value(), ": the checkpoint of step ", grant->step(),
                           " is granted its final name, ", grant->path()));
  }
  AddGrant(*std::move(grant), grants);
  turn.Save(job);
  turn.Push(rank.host());
}

// Returns why the report of a save must be wrong; empty: nothing contradicts it.
std::string FindContradiction(const v1::Job& head, const CheckpointGrants& grants, const v1::CheckpointSaved& saved) {
  if (saved.path().size() > limits::kPathBytes || saved.manifest_hash().size() > kManifestHashBytes) {
    return "its path or hash is too long";
  }
  for (const v1::CheckpointGrant& grant : grants) {
    if (grant.generation() != head.generation() || grant.step() != saved.step()) continue;
    const bool same = grant.manifest_hash() == saved.manifest_hash();
    if (same && grant.refused()) return absl::StrCat("it was refused: ", grant.reason());
    if (!same && !grant.refused())
      return absl::StrCat("another checkpoint of that step was granted, with manifest hash ", grant.manifest_hash());
  }
  return "";
}

// A checkpoint answers an operator's request if it is not older than the request.
void ClearSaveRequest(Job& job, uint64_t saved_step) {
  if (saved_step < job.record.save_asked_step()) return;
  job.record.clear_save_awaited();
  job.record.clear_save_asked_step();
}

// Returns the training time since this step, which a checkpoint of the step does not contain. A save may be
// reported many steps after the step that it contains.
uint64_t TrainedSince(const Job& job, uint64_t step) {
  auto after = std::upper_bound(job.current.step_marks.begin(), job.current.step_marks.end(), step,
                                [](uint64_t of, const StepMark& mark) { return of < mark.step; });
  if (after == job.current.step_marks.begin()) return 0;
  const uint64_t now_ms = job.record.goodput().train_ms();
  return now_ms - std::min(now_ms, std::prev(after)->train_ms);
}

}  // namespace

void CountSavedSteps(Turn& turn, Job& job, uint64_t step) {
  AccountGoodput(turn, job);
  StepsSaved(*job.record.mutable_goodput(), TrainedSince(job, step));
}

void RecordCheckpoint(Turn& turn, Job& job, const v1::CheckpointInfo& info) {
  v1::Job& head = job.head();
  // A recorded checkpoint of a later step can only be of an earlier generation, and this group did not resume from it,
  // so it is removed from the record.
  EraseFrom(head, FirstAt(head, info.step()));
  *head.add_checkpoints() = info;
  uint32_t keep = head.spec().has_command() ? kScriptCheckpointsRecorded : head.spec().checkpoint().keep();
  int limit = keep == 0 ? kCheckpointsRecorded : static_cast<int>(std::min<uint32_t>(keep, kCheckpointsRecorded));
  head.mutable_checkpoints()->DeleteSubrange(0, head.checkpoints_size() - CountKept(head, limit));
  turn.Save(job);
}

namespace {

void Saved(Turn& turn, Job& job, const v1::CheckpointSaved& saved) {
  v1::Job& head = job.head();
  CheckpointGrants& grants = *job.record.mutable_grants();
  if (std::string why = FindContradiction(head, grants, saved); !why.empty()) {
    turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kError,
                absl::StrCat("rank 0 reports a checkpoint of step ", saved.step(), " that is not recorded: ", why));
    return;
  }
  const bool retried = LastSaveIsRetried(job);
  ForgetGrants(head.generation(), saved.step(), grants);
  ClearSaveRequest(job, saved.step());
  // A generation saves steps in increasing order. A step that is not above the generation's newest recorded step was
  // reported before; the record of its checkpoint may have been dropped.
  if (head.checkpoints_size() > 0) {
    const v1::CheckpointInfo& newest = head.checkpoints(head.checkpoints_size() - 1);
    if (newest.generation() == head.generation() && saved.step() <= newest.step()) return turn.Save(job);
  }
  v1::CheckpointInfo info;
  info.set_step(saved.step());
  info.set_generation(head.generation());
  info.set_path(saved.path());
  info.set_manifest_hash(saved.manifest_hash());
  info.set_size_bytes(saved.size_bytes());
  info.set_recorded_unix_ms(absl::ToUnixMillis(turn.wall));
  RecordCheckpoint(turn, job, info);
  // A stop waits only for the part of a save that stalls training; the rest runs while the job trains.
  job.longest_s = std::max(job.longest_s, saved.has_stall_s() ? saved.stall_s() : saved.seconds());
  CountSavedSteps(turn, job, saved.step());
  turn.Emit(SaveCounted{.failed = false, .size_bytes = saved.size_bytes(), .seconds = saved.seconds()});
  v1::Event event;
  *event.mutable_checkpoint() = head.checkpoints(head.checkpoints_size() - 1);
  turn.Publish(job, std::move(event));
  if (retried) PublishLastSaveSuccess(turn, job);
}

// Removes the grants of a save whose files are gone, so that no generation looks for them.
void ForgetSave(Turn& turn, Job& job, const Rank& rank, uint64_t step) {
  if (rank.record.rank() != 0) return;
  ForgetGrants(job.head().generation(), step, *job.record.mutable_grants());
  turn.Save(job);
}

void SaveFailed(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed) {
  ForgetSave(turn, job, rank, failed.step());
  if (failed.withdrawn()) {
    turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kInfo,
                absl::StrCat("the complete checkpoint of step ", failed.step(),
                             " was removed before it was renamed, because there is a newer one"));
    return;
  }
  turn.Emit(SaveCounted{.failed = true, .size_bytes = 0, .seconds = std::nullopt});
  if (failed.will_retry()) return PublishLastSaveFailure(turn, job, rank, failed);
  const bool last = failed.is_last() || failed.step() >= job.head().spec().train().steps();
  turn.Warn(absl::StrCat("job ", job.id.value(), ": saving step ", failed.step(),
                         " failed: ", CutText(failed.message(), 1024)));
  v1::Event event;
  event.mutable_notice()->set_level(LevelName(NoticeLevel::kError));
  event.mutable_notice()->set_rule(RuleName(DecisionRule::kCheckpoint));
  event.mutable_notice()->set_failed_save_step(failed.step());
  event.mutable_notice()->set_text(absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(),
                                                " could not save step ", failed.step(), ": ",
                                                CutText(failed.message(), 4096), last ? "" : "; training continues"));
  turn.Publish(job, std::move(event));
  // If the save was part of a requested stop, the ranks continue to train, unless a newer stop, a cancellation without
  // a save or a failure has followed.
  bool reverts_stop = failed.stop_request() != 0 && failed.stop_request() == job.record.stop_requests() &&
                      job.current.stop && job.state() == v1::JOB_STATE_STOPPING && !job.current.nothing_desired &&
                      !job.record.cancelled() && !job.record.has_failure();
  if (!reverts_stop) return;
  UndoStop(turn, job, absl::StrCat("step ", failed.step(), " could not be saved: ", CutText(failed.message(), 1024)));
}

// A trainer of an earlier version reports no hash.
bool IsSameCheckpoint(const v1::CheckpointGrant& grant, const v1::RestorePoint& restored) {
  const std::string& hash = restored.manifest_hash();
  return grant.step() == restored.step() && (hash.empty() || hash == grant.manifest_hash());
}

// Resolves the grants of earlier generations: the new group has renamed their checkpoints or removed them. `restored`:
// the checkpoint that the new group resumed from; null: it starts without one.
void ResolveOldGrants(Turn& turn, Job& job, const v1::RestorePoint* restored) {
  CheckpointGrants& grants = *job.record.mutable_grants();
  const CheckpointGrants previous = grants;
  grants.Clear();
  for (const v1::CheckpointGrant& grant : previous) {
    if (grant.generation() == job.head().generation()) {
      *grants.Add() = grant;
    } else if (!grant.refused() && restored != nullptr && IsSameCheckpoint(grant, *restored)) {
      v1::CheckpointInfo info = MakeInfo(grant);
      info.set_recorded_unix_ms(absl::ToUnixMillis(turn.wall));
      RecordCheckpoint(turn, job, info);
    } else if (!grant.refused() && (restored == nullptr || grant.step() >= restored->step())) {
      turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kWarning,
                  absl::StrCat("the checkpoint of step ", grant.step(), ", granted to generation ", grant.generation(),
                               ", could not be used; ",
                               restored == nullptr ? "training starts from the beginning"
                                                   : absl::StrCat("restored from step ", restored->step())));
    }
  }
  if (grants.size() != previous.size()) turn.Save(job);
}

// Publishes which steps have no report: a lost group may have made and saved steps whose reports never arrived. The
// steps up to the checkpoint from which the previous group resumed are left out: another job made them, or an earlier
// notice names those without a report.
void PublishMissingReports(Turn& turn, Job& job, uint64_t restored_step) {
  const uint64_t published = std::max({job.reported_step, job.published.step(), job.record.restored_step()});
  if (job.generation().value() == 1 || restored_step <= published) return;
  turn.Notice(job, NoticeLevel::kWarning,
              absl::StrCat("reports of steps ", published + 1, " to ", restored_step,
                           " did not arrive: the group that made them was lost"));
}

// Publishes the keys of the job file whose values differ from those that the checkpoint was made with.
void PublishChangedKeys(Turn& turn, Job& job, const v1::RestorePoint& restored) {
  for (int i = 0; i < std::min(restored.changes_size(), kChangesPublished); ++i) {
    const v1::ResolvedKey& change = restored.changes(i);
    const std::string text =
        CutText(absl::StrCat("resumes from step ", restored.step(), " with a changed ", change.key(), ": ",
                             change.value(), change.reason().empty() ? "" : "; ", change.reason()),
                limits::kDurableTextBytes);
    if (!WasPublished(job, DecisionRule::kResume, text))
      turn.Decide(job, DecisionRule::kResume, NoticeLevel::kWarning, text);
  }
}

// Records the checkpoint that a group resumed from as a checkpoint of this job, even if another job wrote it.
void RecordRestored(Turn& turn, Job& job, const v1::RestorePoint& restored) {
  const v1::Job& head = job.head();
  const int index = FirstAt(head, restored.step());
  if (index < head.checkpoints_size() || restored.path().empty()) return;
  if (restored.path().size() > limits::kPathBytes || restored.manifest_hash().size() > kManifestHashBytes) return;
  v1::CheckpointInfo info;
  info.set_step(restored.step());
  info.set_path(restored.path());
  info.set_manifest_hash(restored.manifest_hash());
  info.set_recorded_unix_ms(absl::ToUnixMillis(turn.wall));
  RecordCheckpoint(turn, job, info);
}

// Whether this generation has recorded a checkpoint. A group resumes before it saves.
bool HasSaved(const v1::Job& head) {
  return std::any_of(head.checkpoints().begin(), head.checkpoints().end(),
                     [&](const v1::CheckpointInfo& info) { return info.generation() == head.generation(); });
}

void Restored(Turn& turn, Job& job, const v1::RestorePoint& restored) {
  // The daemon sends the report again: it was killed while its newer facts were only in memory, and its outbox file is
  // older. The later checkpoints stay recorded.
  if (HasSaved(job.head())) return;
  PublishMissingReports(turn, job, restored.step());
  job.record.set_restored_step(restored.step());
  // The steps up to the checkpoint count as made, even if another job made them and this job has no report of them.
  job.head().set_last_step(std::max(job.head().last_step(), restored.step()));
  turn.Save(job);
  for (int i = 0; i < std::min(restored.passed_over_size(), limits::kRejectedCheckpointsReported); ++i) {
    turn.Decide(job, DecisionRule::kCheckpoint, NoticeLevel::kWarning,
                CutText(restored.passed_over(i), limits::kDurableTextBytes));
  }
  int newer = FirstAt(job.head(), restored.step() + 1);
  if (newer < job.head().checkpoints_size()) {
    turn.Notice(job, NoticeLevel::kWarning,
                absl::StrCat("the checkpoint of step ", job.head().checkpoints(newer).step(),
                             " could not be used; restored from step ", restored.step(), ", ", restored.path()));
    EraseFrom(job.head(), newer);
  } else {
    turn.Notice(job, NoticeLevel::kInfo, absl::StrCat("restored from step ", restored.step(), ", ", restored.path()));
  }
  PublishChangedKeys(turn, job, restored);
  ResolveOldGrants(turn, job, &restored);
  RecordRestored(turn, job, restored);
}

}  // namespace

v1::CheckpointInfo MakeInfo(const v1::CheckpointGrant& grant) {
  v1::CheckpointInfo info;
  info.set_step(grant.step());
  info.set_generation(grant.generation());
  info.set_path(grant.path());
  info.set_manifest_hash(grant.manifest_hash());
  info.set_size_bytes(grant.size_bytes());
  info.set_recorded_unix_ms(grant.time_unix_ms());
  return info;
}

void ResolveGrantsWithoutRestore(Turn& turn, Job& job) { ResolveOldGrants(turn, job, nullptr); }

void ApplyCheckpointFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact) {
  switch (fact.kind_case()) {
    case v1::Fact::kSaveReady:
      // Only rank 0 requests grants.
      if (rank.record.rank() == 0) SaveReady(turn, job, rank, fact.save_ready());
      break;
    case v1::Fact::kSaved:
      Saved(turn, job, fact.saved());
      break;
    case v1::Fact::kSaveFailed:
      SaveFailed(turn, job, rank, fact.save_failed());
      break;
    default:
      // Rank 0 chooses the restart point for all ranks; the others would report the same.
      if (rank.record.rank() == 0) Restored(turn, job, fact.restored());
  }
}

}  // namespace trainyard
