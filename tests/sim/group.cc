#include "tests/sim/group.h"

#include <algorithm>
#include <set>

#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// TCP between ranks gives up after this time.
constexpr absl::Duration kCutLimit = absl::Seconds(15);
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
constexpr absl::Duration kLookAtParts = absl::Milliseconds(50);
// The rest of a step is communication.
constexpr double kComputeShare = 0.8;
// The pause between tries of the last save, which doubles, and the time in which it is retried.
constexpr absl::Duration kLastPauseMin = absl::Seconds(1);
constexpr absl::Duration kLastPauseMax = absl::Seconds(30);
constexpr absl::Duration kLastSaveRetry = absl::Minutes(10);
constexpr char kUnsaved[] = "No space left on device";
// TCP's resends succeed within this time, unless the hosts are cut from each other.
constexpr absl::Duration kMostDataDelay = absl::Milliseconds(2'500);

}  // namespace

Group::Group(World& world, const GroupId& id, uint32_t ranks, const JobPlan& plan)
    : world_(world), id_(id), ranks_(ranks), plan_(plan) {}

void Group::Enter(Trainer* trainer) { trainers_[trainer->id().rank] = trainer; }

Trainer* Group::First() {
  auto at = trainers_.find(0);
  return at == trainers_.end() ? nullptr : at->second;
}

bool Group::Connected() const {
  if (trainers_.empty()) return true;
  std::set<const Machine*> hosts;
  for (const auto& [rank, trainer] : trainers_) hosts.insert(&trainer->machine());
  return hosts.size() == 1 || world_.AllReachEachOther(hosts);
}

bool Group::AnyFrozen() const {
  return std::any_of(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second->frozen(); });
}

void Group::Leave(Trainer* trainer, bool in_order) {
  bool was_in = trainers_.erase(trainer->id().rank) > 0;
  if (!was_in || in_order || over_ || !trainer->joined()) return;
  BreakAll();
}

void Group::BreakAll() {
  over_ = true;
  for (auto& [rank, trainer] : trainers_) {
    if (!trainer->joined()) continue;
    world_.engine.After(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(200)),
                        [trainer = trainer->shared_from_this(), step = step_ + 1] { trainer->PeerGone(step); });
  }
}

void Group::Go() {
  bool all = Whole() &&
             std::all_of(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second->steps(); });
  if (!all || stepping_ || over_) return;
  stepping_ = true;
  world_.judge.Began(id_);
  step_ = first_step_ - 1;
  if (step_ >= plan_.steps) return EndAll(false);  // the last checkpoint is of the last step
  StepLater();
}

void Group::StepLater() {
  absl::Duration alike = plan_.step_time * (0.9 + 0.2 * world_.random.Unit());
  step_began_ = world_.engine.now();
  computes_ = kComputeShare * alike;
  absl::Duration slowest = computes_;
  for (auto& [rank, trainer] : trainers_) slowest = std::max(slowest, ComputeTime(*trainer));
  absl::Duration takes = slowest + (1 - kComputeShare) * alike + LossDelay();
  world_.engine.After(takes, [self = shared_from_this()] { self->TryStep(); });
}

absl::Duration Group::ComputeTime(const Trainer& trainer) const { return computes_ * trainer.slowness(); }

// Between two steps, and before the first one, it waits for ranks that are behind.
bool Group::Computes(const Trainer& trainer) const {
  if (step_began_ == absl::InfiniteFuture()) return false;
  return world_.engine.now() < step_began_ + ComputeTime(trainer);
}

// The delay of the slowest link, because all ranks wait for it.
absl::Duration Group::LossDelay() const {
  absl::Duration longest;
  std::set<Machine*> hosts;
  for (const auto& [rank, trainer] : trainers_) hosts.insert(&trainer->machine());
  if (hosts.size() < 2) return longest;
  for (Machine* host : hosts) longest = std::max(longest, world_.network.SentAgain(*host, kMostDataDelay));
  return longest;
}

void Group::TryStep() {
  if (over_ || world_.judge.violation().has_value()) return;
  const bool connected = Connected();
  if (connected) cut_since_ = absl::InfiniteFuture();
  if (!connected) {
    cut_since_ = std::min(cut_since_, world_.engine.now());
    world_.judge.Harm(id_, "its ranks were disconnected from each other");
    if (world_.engine.now() - cut_since_ >= kCutLimit) return BreakAll();
  }
  if (!connected || AnyFrozen()) {
    world_.engine.After(kLookAgain, [self = shared_from_this()] { self->TryStep(); });
    return;
  }
  ++step_;
  for (auto& [rank, trainer] : trainers_) {
    trainer->StepMade(step_, world_.engine.now() - step_began_, ComputeTime(*trainer));
  }
  step_began_ = absl::InfiniteFuture();
  AfterStep();
}

void Group::AfterStep() {
  if (plan_.evaluate_every > 0 && step_ % plan_.evaluate_every == 0) First()->Evaluated(step_);
  const bool last = step_ >= plan_.steps;
  const bool stopped = (First()->stop_asked() || leave_) && !last;
  const bool due = plan_.save_every > 0 && step_ % plan_.save_every == 0;
  if (last || (stopped && plan_.save_every > 0)) {
    for (auto& [rank, trainer] : trainers_) trainer->SetPhase("save");
    return SaveThen(stopped, /*begun=*/false);
  }
  if (last || stopped) return EndAll(stopped);
  if (due || save_noted_ || (retry_at_ > 0 && step_ >= retry_at_)) BeginSave();
  StepLater();
}

// Runs in parallel with later steps. One save at a time; saves that become due meanwhile are merged into one more.
void Group::BeginSave() {
  save_noted_ = saving_ != 0;
  if (save_noted_) return;
  saving_ = step_;
  retry_at_ = 0;
  parts_.clear();
  part_failed_ = false;
  auto trainers = trainers_;
  for (auto& [rank, trainer] : trainers) trainer->BeginPart(step_);
}

// When all parts have ended, all ranks know whether one failed: then the save is retried after 1, 2, 4, ... steps.
void Group::PartEnded(uint64_t step, uint32_t rank, bool written) {
  if (step != saving_) return;
  parts_.insert(rank);
  part_failed_ |= !written;
  if (parts_.size() < ranks_) return;
  saving_ = 0;
  retry_after_ = !part_failed_ ? 0 : std::min<uint64_t>(std::max<uint64_t>(2 * retry_after_, 1), plan_.save_every);
  if (part_failed_) retry_at_ = step_ + retry_after_;
  if (First() == nullptr) return;
  if (part_failed_) return First()->AbandonSave(step);
  First()->Assemble(step);
}

// All ranks wait for the parts of the last save, which follow those of a save in progress; only rank 0 waits for its
// name.
void Group::SaveThen(bool stopped, bool begun) {
  if (over_ || world_.judge.violation().has_value() || First() == nullptr) return;
  if (!stopped && world_.mutation == Mutation::kClaimSaved) {
    First()->ClaimSaved(step_);
    return EndAll(stopped);
  }
  const bool assembled = begun && (part_failed_ || stopped || First()->assembled(step_));
  if (saving_ == 0 && !AnyFrozen() && (assembled || !begun)) {
    // No rank stops or exits permanently with a state that could not be saved.
    const bool goes_on = begun && stopped && part_failed_ && First()->TakeBackStop(step_);
    if (goes_on) return StepLater();
    if (begun && !stopped && LastSaveFailed()) return SaveLastAgain();
    if (begun) return EndAll(stopped);
    BeginSave();
    begun = true;
  }
  world_.engine.After(kLookAtParts, [self = shared_from_this(), stopped, begun] { self->SaveThen(stopped, begun); });
}

bool Group::LastSaveFailed() { return part_failed_ || First()->abandoned(step_); }

bool Group::WillRetry(uint64_t step) {
  if (step < plan_.steps || leave_ || First() == nullptr || First()->gives_up()) return false;
  return world_.engine.now() < last_save_until_;
}

void Group::SaveLastAgain() {
  last_save_until_ = std::min(last_save_until_, world_.engine.now() + kLastSaveRetry);
  if (!WillRetry(step_)) return EndAll(false, kUnsaved);
  last_pause_ = std::min(kLastPauseMax, std::max(kLastPauseMin, 2 * last_pause_));
  world_.engine.After(last_pause_, [self = shared_from_this()] {
    if (self->over_ || self->First() == nullptr) return;
    self->First()->BeginAgain(self->step_);
    self->SaveThen(/*stopped=*/false, /*begun=*/false);
  });
}

void Group::EndAll(bool stopped, const std::string& unsaved) {
  over_ = true;
  auto trainers = trainers_;
  const bool saved = (plan_.save_every > 0 || !stopped) && step_ >= first_step_;
  for (auto& [rank, trainer] : trainers) {
    if (rank == 0 && saved && unsaved.empty() && world_.mutation != Mutation::kClaimSaved) {
      trainer->FinishNamed(step_, stopped);
    } else {
      trainer->Finish(step_, stopped, rank == 0 ? unsaved : "");
    }
  }
}

}  // namespace trainyard::sim
