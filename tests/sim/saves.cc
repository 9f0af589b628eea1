// A trainer's part in saves: every rank writes its part beside its steps; rank 0 writes the manifest once all are
// there, asks for the grant, gives the save its name. And what rank 0 does with what earlier generations left. Each
// step of it is a point at which a fault may strike.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/recovery.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// Saves that wait for a word, at most.
constexpr size_t kWaiting = 2;
constexpr absl::Duration kLook = absl::Milliseconds(100);
// For the word on the last save; told to leave there is less time.
constexpr absl::Duration kLastWait = absl::Minutes(10);
constexpr absl::Duration kLeaveWait = absl::Seconds(3);

}  // namespace

Writer Trainer::writer() const { return {world_.life(), id_.generation.value()}; }

void Trainer::After(absl::Duration least, absl::Duration most, void (Trainer::*act)(uint64_t), uint64_t step) {
  world_.engine.After(world_.random.Between(least, most), [self = shared_from_this(), act, step] {
    self->Do([self, act, step] {
      self->world_.StrikeInSave(self->machine_, *self);
      self->Do([self, act, step] { (self.get()->*act)(step); });  // if it still does anything
    });
  });
}

void Trainer::BeginPart(uint64_t step) {
  After(absl::Milliseconds(1), absl::Milliseconds(50), &Trainer::OpenPart, step);
}

void Trainer::OpenPart(uint64_t step) {
  if (world_.storage.Fenced(id_.job, writer())) return Exit(kExitAborted);
  world_.storage.MakeFolder(id_.job, writer(), step);
  After(absl::Milliseconds(10), absl::Milliseconds(400), &Trainer::WritePart, step);
}

// Another generation may have settled the folder since: then what was written is of no use to anybody.
void Trainer::WritePart(uint64_t step) {
  world_.storage.WritePart(id_.job, writer(), step, id_.rank);
  if (world_.storage.Fenced(id_.job, writer())) {
    world_.storage.Remove(id_.job, writer(), step);
    return Exit(kExitAborted);
  }
  group_->PartWritten(step, id_.rank);
}

// ---- rank 0 ----

void Trainer::Assemble(uint64_t step) {
  After(absl::Milliseconds(2), absl::Milliseconds(60), &Trainer::WriteManifest, step);
}

void Trainer::WriteManifest(uint64_t step) {
  if (world_.storage.Fenced(id_.job, writer())) return Exit(kExitAborted);
  if (!world_.storage.WriteManifest(id_.job, writer(), step, world_size_)) return Exit(kExitAborted);
  waiting_.push_back(step);
  After(absl::ZeroDuration(), absl::Milliseconds(20), &Trainer::TellReady, step);
}

void Trainer::TellReady(uint64_t step) {
  v1::Fact fact;
  v1::CheckpointReady& ready = *fact.mutable_save_ready();
  ready.set_step(step);
  ready.set_path(absl::StrCat("/runs/", step));
  ready.set_manifest_hash(HashOf(step, id_.generation.value()));
  ready.set_size_bytes(1'000);
  assembled_ = step;
  Tell(fact);
  if (world_.mutation == Mutation::kGrantTwice) {
    ready.set_manifest_hash(absl::StrCat(ready.manifest_hash(), "-other"));
    Tell(fact);
  }
  // The oldest makes room, unless it is on its way to its name.
  if (waiting_.size() <= kWaiting || granted_.contains(waiting_.front())) return;
  const uint64_t oldest = waiting_.front();
  waiting_.pop_front();
  v1::Fact gone;
  gone.mutable_save_failed()->set_step(oldest);
  gone.mutable_save_failed()->set_withdrawn(true);
  Tell(std::move(gone));
  world_.storage.Remove(id_.job, writer(), oldest);
}

void Trainer::HearGrants(const v1::GrantSaves& grants) {
  for (const v1::CheckpointGrant& word : grants.grants()) {
    if (word.generation() != id_.generation.value()) continue;
    if (word.manifest_hash() != HashOf(word.step(), word.generation())) continue;  // not what this rank has
    if (word.refused()) {
      world_.judge.Break(invariant::kGrantsKept, absl::StrCat(agent::Describe(id_), " is refused step ", word.step(),
                                                              ", which it has ready: ", word.reason()));
    }
    if (granted_.insert(word.step()).second) CommitNext();
  }
}

// In order, one at a time.
void Trainer::CommitNext() {
  if (committing_ || waiting_.empty() || !granted_.contains(waiting_.front())) return;
  committing_ = true;
  After(absl::Milliseconds(1), absl::Milliseconds(40), &Trainer::LookAtFence, waiting_.front());
}

// Between the look and the rename another generation may take the folder; what it has settled is not there any more.
void Trainer::LookAtFence(uint64_t step) {
  if (world_.storage.Fenced(id_.job, writer())) return Exit(kExitAborted);
  After(absl::ZeroDuration(), absl::Milliseconds(5), &Trainer::Commit, step);
}

void Trainer::Commit(uint64_t step) {
  if (!world_.storage.Name(id_.job, writer(), step)) return Exit(kExitAborted);
  world_.judge.CheckNamed(id_.job, writer(), step, world_.storage.FolderOf(id_.job));
  if (world_.mutation == Mutation::kPruneEarly) world_.storage.Prune(id_.job, writer(), step, 0);
  After(absl::ZeroDuration(), absl::Milliseconds(10), &Trainer::TellSaved, step);
}

void Trainer::TellSaved(uint64_t step) {
  waiting_.pop_front();
  committing_ = false;
  v1::Fact fact;
  fact.mutable_saved()->set_step(step);
  fact.mutable_saved()->set_path(absl::StrCat("/runs/", step));
  fact.mutable_saved()->set_manifest_hash(HashOf(step, id_.generation.value()));
  fact.mutable_saved()->set_size_bytes(1'000);
  fact.mutable_saved()->set_seconds(5);
  fact.mutable_saved()->set_stall_s(0.1);
  Tell(std::move(fact));
  CommitNext();
}

// The others have left; rank 0 sees to it that what all have made has its name.
void Trainer::FinishNamed(uint64_t step, bool stopped) {
  SetPhase("leaving");
  FinishWhenNamed(step, stopped, world_.engine.now());
}

void Trainer::FinishWhenNamed(uint64_t step, bool stopped, absl::Time since) {
  Do([self = shared_from_this(), step, stopped, since] {
    if (self->waiting_.empty() && self->assembled_ >= step) return self->Finish(step, stopped);
    if (self->world_.engine.now() >= since + (self->leave_ ? kLeaveWait : kLastWait)) {
      // Told to leave, it leaves the complete partial; else it takes the name that nobody gives.
      if (self->leave_) return self->Finish(step, stopped);
      for (uint64_t waits : self->waiting_) self->granted_.insert(waits);
      self->CommitNext();
    }
    self->world_.engine.After(kLook, [self, step, stopped, since] { self->FinishWhenNamed(step, stopped, since); });
  });
}

// ---- what earlier generations left ----

void Trainer::TakeFolder() {
  if (!world_.storage.Take(id_.job, writer())) return Exit(kExitAborted);
  After(absl::Milliseconds(1), absl::Milliseconds(50), &Trainer::SettleFolder, 0);
}

void Trainer::SettleFolder(uint64_t) {
  if (world_.storage.Fenced(id_.job, writer())) return Exit(kExitAborted);
  Storage& storage = world_.storage;
  const RunFolder& folder = storage.FolderOf(id_.job);
  const Writer settled = folder.settled;
  auto named = [&](uint64_t step, Writer by) {
    return by.life == world_.life() &&
           std::any_of(order_->grants().begin(), order_->grants().end(), [&](const auto& word) {
             return !word.refused() && word.step() == step && word.generation() == by.generation;
           });
  };
  std::vector<std::pair<uint64_t, Writer>> lies;
  for (const auto& [key, partial] : folder.partials) lies.push_back(key);
  for (const auto& [step, by] : lies) {
    const bool complete = folder.partials.at({step, by}).manifest || world_.mutation == Mutation::kAdoptIncomplete;
    const bool adopt = complete && (by >= settled || named(step, by)) && world_.mutation != Mutation::kAdoptNothing;
    if (adopt) storage.Name(id_.job, by, step);
    if (!adopt && world_.mutation != Mutation::kLeavePartials) storage.Remove(id_.job, by, step);
  }
  storage.SetSettled(id_.job, writer());
  After(absl::ZeroDuration(), absl::Milliseconds(30), &Trainer::Restore, 0);
}

// Rank 0 chooses: the newest there is.
void Trainer::Restore(uint64_t) {
  const auto& checkpoints = world_.storage.FolderOf(id_.job).checkpoints;
  uint64_t step = 0;
  if (order_->has_restart_from()) {
    step = order_->restart_from().step();
    auto at = checkpoints.find(step);
    if (at == checkpoints.end() || at->second.hash(step) != order_->restart_from().manifest_hash()) {
      world_.judge.Break(invariant::kRestartPoint,
                         absl::StrCat(agent::Describe(id_), " is to go on from step ", step, ", ",
                                      order_->restart_from().manifest_hash(), ", which is ",
                                      at == checkpoints.end() ? "not there" : at->second.hash(step)));
    }
  }
  if (order_->resume() && !checkpoints.empty()) step = std::max(step, checkpoints.rbegin()->first);
  auto at = checkpoints.find(step);
  world_.judge.CheckRestored(id_, step, at == checkpoints.end() || at->second.whole);
  group_->StartAt(step + 1);
  if (step > 0) {
    v1::Fact fact;
    fact.mutable_restored()->set_step(step);
    fact.mutable_restored()->set_path(absl::StrCat("/runs/", step));
    if (at != checkpoints.end()) fact.mutable_restored()->set_manifest_hash(at->second.hash(step));
    Tell(std::move(fact));
  }
  BeReady();
}

}  // namespace trainyard::sim
