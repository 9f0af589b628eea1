// A trainer's part in saves: every rank writes its part in parallel with its steps; rank 0 writes the manifest when all
// parts exist, requests the grant, and gives the save its name. Before that it settles the saves that earlier
// generations left. A fault may strike at each of these points. A mutation is a planted bug, which an invariant must
// detect (mutation.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/recovery.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// The maximum number of saves that wait for a grant.
constexpr size_t kMaxWaitingSaves = 2;
constexpr absl::Duration kNamePollInterval = absl::Milliseconds(100);
// The time to wait for the grant of the last save; it is shorter after a SIGTERM.
constexpr absl::Duration kGrantWait = absl::Minutes(10);
constexpr absl::Duration kLeavingGrantWait = absl::Seconds(3);
// The time to wait until another job releases the run folder, as in worker/trainer/rank.
constexpr uint64_t kLockWaitMs = 10'000;
constexpr absl::Duration kLockPollInterval = absl::Milliseconds(200);

}  // namespace

Writer Trainer::writer() const { return {world_.incarnation(), id_.generation.value()}; }

void Trainer::After(absl::Duration shortest, absl::Duration longest, void (Trainer::*act)(uint64_t), uint64_t step) {
  world_.engine.After(world_.random.Between(shortest, longest), [self = shared_from_this(), act, step] {
    self->Do([self, act, step] {
      self->world_.StrikeInSave(self->machine_, *self);
      self->Do([self, act, step] { (self.get()->*act)(step); });  // unless the trainer has ended
    });
  });
}

void Trainer::BeginPart(uint64_t step) {
  After(absl::Milliseconds(1), absl::Milliseconds(50), &Trainer::OpenPart, step);
}

void Trainer::OpenPart(uint64_t step) {
  if (world_.storage.IsFenced(id_.job, writer())) return Exit(kExitAborted);
  world_.storage.MakePartial(id_.job, writer(), step);
  After(absl::Milliseconds(10), absl::Milliseconds(400), &Trainer::WritePart, step);
}

// Another generation may have settled the folder meanwhile, which makes the written part useless.
void Trainer::WritePart(uint64_t step) {
  const bool fails = machine_.write_faults > 0;
  const bool counts = !fails || world_.mutation == Mutation::kIgnoreFailedWrite;
  if (counts) world_.storage.WritePart(id_.job, writer(), step, id_.rank, /*torn=*/fails);
  if (world_.storage.IsFenced(id_.job, writer())) {
    world_.storage.RemovePartial(id_.job, writer(), step);
    return Exit(kExitAborted);
  }
  // A rank that cannot write its part reports that itself; the others learn of it when all parts have ended.
  if (!counts) ReportSaveFailed(step, "cannot write its part: No space left on device");
  group_->PartEnded(step, id_.rank, counts);
}

void Trainer::ReportSaveFailed(uint64_t step, const std::string& message, uint64_t stop_request) {
  v1::Fact fact;
  fact.mutable_save_failed()->set_step(step);
  fact.mutable_save_failed()->set_message(message);
  fact.mutable_save_failed()->set_stop_request(stop_request);
  fact.mutable_save_failed()->set_will_retry(stop_request == 0 && group_->WillRetry(step));
  ReportFact(std::move(fact));
}

// ---- rank 0 ----

// Saves are assembled one after another, as by the commit thread of the production code.
void Trainer::Assemble(uint64_t step) {
  to_assemble_.push_back(step);
  if (to_assemble_.size() == 1) AssembleNext();
}

void Trainer::AssembleNext() {
  if (to_assemble_.empty()) return;
  After(absl::Milliseconds(2), absl::Milliseconds(60), &Trainer::WriteManifest, to_assemble_.front());
}

void Trainer::Assembled() {
  to_assemble_.pop_front();
  AssembleNext();
}

void Trainer::AbandonSave(uint64_t step) {
  assembled_ = abandoned_ = step;
  world_.storage.RemovePartial(id_.job, writer(), step);
}

void Trainer::RestartSave(uint64_t step) {
  abandoned_ = 0;
  assembled_ = step - 1;
}

void Trainer::ClaimSaved(uint64_t step) {
  waiting_.assign(1, step);
  assembled_ = step;
  ReportSaved(step);
}

bool Trainer::CancelStop(uint64_t step) {
  if (!stop_ || !stop_needs_save_ || leave_) return false;
  stop_ = false;
  ReportSaveFailed(step, "a rank could not write its part", stop_request_);
  return true;
}

void Trainer::WriteManifest(uint64_t step) {
  if (world_.storage.IsFenced(id_.job, writer())) return Exit(kExitAborted);
  if (machine_.write_faults > 0) {
    AbandonSave(step);
    ReportSaveFailed(step, "cannot write the manifest: No space left on device");
    return Assembled();
  }
  if (!world_.storage.WriteManifest(id_.job, writer(), step, world_size_)) return Exit(kExitAborted);
  waiting_.push_back(step);
  After(absl::ZeroDuration(), absl::Milliseconds(20), &Trainer::ReportReady, step);
}

void Trainer::ReportReady(uint64_t step) {
  Assembled();
  v1::Fact fact;
  v1::CheckpointReady& ready = *fact.mutable_save_ready();
  ready.set_step(step);
  ready.set_path(absl::StrCat("/runs/", step));
  ready.set_manifest_hash(HashOf(step, id_.generation.value()));
  ready.set_size_bytes(1'000);
  assembled_ = step;
  ReportFact(fact);
  if (world_.mutation == Mutation::kGrantTwice) {
    ready.set_manifest_hash(absl::StrCat(ready.manifest_hash(), "-other"));
    ReportFact(fact);
  }
  // If too many saves wait for a grant, the oldest is withdrawn, unless it is being renamed.
  if (waiting_.size() <= kMaxWaitingSaves || granted_.contains(waiting_.front())) return;
  const uint64_t oldest = waiting_.front();
  waiting_.pop_front();
  v1::Fact withdrawn;
  withdrawn.mutable_save_failed()->set_step(oldest);
  withdrawn.mutable_save_failed()->set_withdrawn(true);
  ReportFact(std::move(withdrawn));
  world_.storage.RemovePartial(id_.job, writer(), oldest);
}

void Trainer::HandleGrants(const v1::GrantSaves& grants) {
  for (const v1::CheckpointGrant& grant : grants.grants()) {
    if (grant.generation() != id_.generation.value()) continue;
    if (grant.manifest_hash() != HashOf(grant.step(), grant.generation())) continue;  // not the save that this rank has
    if (grant.refused()) {
      world_.judge.ReportViolation(invariant::kGrantsKept,
                                   absl::StrCat(agent::Describe(id_), " was refused step ", grant.step(),
                                                ", which it has ready: ", grant.reason()));
    }
    if (granted_.insert(grant.step()).second) CommitNext();
  }
}

// Commits saves in order, one at a time.
void Trainer::CommitNext() {
  if (committing_ || waiting_.empty() || !granted_.contains(waiting_.front())) return;
  committing_ = true;
  After(absl::Milliseconds(1), absl::Milliseconds(40), &Trainer::CheckFence, waiting_.front());
}

// Another generation may claim the folder between the check and the rename. If it has settled this save, the save no
// longer exists, and the rename fails.
void Trainer::CheckFence(uint64_t step) {
  if (world_.storage.IsFenced(id_.job, writer())) return Exit(kExitAborted);
  After(absl::ZeroDuration(), absl::Milliseconds(5), &Trainer::Commit, step);
}

void Trainer::Commit(uint64_t step) {
  if (!world_.storage.GiveName(id_.job, writer(), step)) return Exit(kExitAborted);
  world_.judge.CheckNamed(id_.job, writer(), step, world_.storage.FolderOf(id_.job));
  if (world_.mutation == Mutation::kPruneEarly) world_.storage.Prune(id_.job, writer(), step, 0);
  After(absl::ZeroDuration(), absl::Milliseconds(10), &Trainer::ReportSaved, step);
}

void Trainer::ReportSaved(uint64_t step) {
  waiting_.pop_front();
  committing_ = false;
  v1::Fact fact;
  fact.mutable_saved()->set_step(step);
  fact.mutable_saved()->set_path(absl::StrCat("/runs/", step));
  fact.mutable_saved()->set_manifest_hash(HashOf(step, id_.generation.value()));
  fact.mutable_saved()->set_size_bytes(1'000);
  fact.mutable_saved()->set_seconds(5);
  fact.mutable_saved()->set_stall_s(0.1);
  ReportFact(std::move(fact));
  CommitNext();
}

// The other ranks finish at once; rank 0 waits until the last save has its name.
void Trainer::FinishNamed(uint64_t step, bool stopped) {
  SetPhase("leaving");
  FinishWhenNamed(step, stopped, world_.engine.now());
}

void Trainer::FinishWhenNamed(uint64_t step, bool stopped, absl::Time since) {
  Do([self = shared_from_this(), step, stopped, since] {
    if (self->waiting_.empty() && self->assembled_ >= step) return self->Finish(step, stopped);
    if (self->world_.engine.now() >= since + (self->leave_ ? kLeavingGrantWait : kGrantWait)) {
      // After a SIGTERM, rank 0 leaves the complete partial save as it is; otherwise it renames the save without a
      // grant.
      if (self->leave_) return self->Finish(step, stopped);
      for (uint64_t waits : self->waiting_) self->granted_.insert(waits);
      self->CommitNext();
    }
    self->world_.engine.After(kNamePollInterval,
                              [self, step, stopped, since] { self->FinishWhenNamed(step, stopped, since); });
  });
}

// ---- what earlier generations left ----

// Like RunFolder::Acquire: a later generation of the same job needs no lock; another job waits for the lock up to
// kLockWaitMs.
void Trainer::ClaimFolder(uint64_t waited_ms) {
  const RunFolder& folder = world_.storage.FolderOf(id_.job);
  const bool of_this_job = folder.owner == id_.job;
  if (of_this_job && folder.fence > writer()) return Exit(kExitAborted);
  const bool locked = folder.holder != 0 && !world_.judge.Truth(folder.holder).ended;
  if (locked && !of_this_job && world_.mutation != Mutation::kIgnoreLock) {
    if (waited_ms >= kLockWaitMs) return Refuse("checkpoint.dir is in use by another job");
    return After(kLockPollInterval, kLockPollInterval, &Trainer::ClaimFolder,
                 waited_ms + absl::ToInt64Milliseconds(kLockPollInterval));
  }
  world_.judge.CheckClaim(id_, folder);
  world_.storage.Claim(id_.job, writer(), pid_);
  After(absl::Milliseconds(1), absl::Milliseconds(50), &Trainer::SettleFolder, 0);
}

void Trainer::Refuse(const std::string& why) {
  v1::Fact fact;
  fact.mutable_refused()->set_message(why);
  ReportFact(std::move(fact));
  CloseThen(kExitRefused);
}

void Trainer::SettleFolder(uint64_t) {
  if (world_.storage.IsFenced(id_.job, writer())) return Exit(kExitAborted);
  Storage& storage = world_.storage;
  const RunFolder& folder = storage.FolderOf(id_.job);
  const bool resumes = order_->resume() || order_->has_restart_from() || id_.generation.value() > 1;
  if (!resumes && !folder.empty() && world_.mutation != Mutation::kUseOthers) {
    return Refuse("checkpoint.dir is not empty");
  }
  const Writer settled = folder.settled;
  const JobId settled_by = folder.settled_by == JobId() ? id_.job : folder.settled_by;
  auto named = [&](uint64_t step, Writer by) {
    return by.incarnation == world_.incarnation() &&
           std::any_of(order_->grants().begin(), order_->grants().end(), [&](const auto& grant) {
             return !grant.refused() && grant.step() == step && grant.generation() == by.generation;
           });
  };
  std::vector<std::pair<uint64_t, Writer>> partials;
  for (const auto& [key, partial] : folder.partials) partials.push_back(key);
  for (const auto& [step, by] : partials) {
    const bool complete = folder.partials.at({step, by}).manifest || world_.mutation == Mutation::kAdoptIncomplete;
    const bool counts = folder.partials.at({step, by}).job == settled_by && by >= settled;
    const bool adopt = complete && (counts || named(step, by)) && world_.mutation != Mutation::kAdoptNothing;
    if (adopt) storage.GiveName(id_.job, by, step);
    if (!adopt && world_.mutation != Mutation::kLeavePartials) storage.RemovePartial(id_.job, by, step);
  }
  storage.SetSettled(id_.job, writer());
  After(absl::ZeroDuration(), absl::Milliseconds(30), &Trainer::Restore, 0);
}

// Rank 0 chooses the newest checkpoint. It uses another job's checkpoint only if a user requested that.
void Trainer::Restore(uint64_t) {
  const auto& checkpoints = world_.storage.FolderOf(id_.job).checkpoints;
  const bool allow_others = order_->resume();
  const bool resumes = allow_others || id_.generation.value() > 1 || world_.mutation == Mutation::kUseOthers;
  uint64_t step = 0;
  if (order_->has_restart_from()) {
    step = order_->restart_from().step();
    auto at = checkpoints.find(step);
    if (at == checkpoints.end() || at->second.hash(step) != order_->restart_from().manifest_hash()) {
      world_.judge.ReportViolation(invariant::kRestartPoint,
                                   absl::StrCat(agent::Describe(id_), " must resume from step ", step, ", ",
                                                order_->restart_from().manifest_hash(), ", which is ",
                                                at == checkpoints.end() ? "missing" : at->second.hash(step)));
    }
  }
  if (resumes && !checkpoints.empty()) step = std::max(step, checkpoints.rbegin()->first);
  auto at = checkpoints.find(step);
  const bool others = at != checkpoints.end() && at->second.job != id_.job;
  if (others && !allow_others && world_.mutation != Mutation::kUseOthers) {
    return Refuse("checkpoint.dir holds checkpoints of another job");
  }
  world_.judge.CheckRestored(id_, step, at == checkpoints.end() ? nullptr : &at->second, allow_others);
  group_->StartAt(step + 1);
  if (step > 0) {
    v1::Fact fact;
    fact.mutable_restored()->set_step(step);
    fact.mutable_restored()->set_path(absl::StrCat("/runs/", step));
    if (at != checkpoints.end()) fact.mutable_restored()->set_manifest_hash(at->second.hash(step));
    ReportFact(std::move(fact));
  }
  BeReady();
}

}  // namespace trainyard::sim
