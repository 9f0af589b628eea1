#include "tests/sim/group.h"

#include <algorithm>
#include <set>

#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

// The time after which TCP connections between ranks that are cut from each other fail.
constexpr absl::Duration kCutLimit = absl::Seconds(15);
constexpr absl::Duration kStepPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kPartsPollInterval = absl::Milliseconds(50);
// The share of a step's time that is computation; the rest is communication.
constexpr double kComputeShare = 0.8;
// The last save is retried for kLastSaveRetry; the pause before each retry doubles from kLastPauseMin to kLastPauseMax.
constexpr absl::Duration kLastPauseMin = absl::Seconds(1);
constexpr absl::Duration kLastPauseMax = absl::Seconds(30);
constexpr absl::Duration kLastSaveRetry = absl::Minutes(10);
constexpr char kDiskFullError[] = "No space left on device";
// TCP delivers a message within this time despite lost packets, unless the hosts are cut from each other.
constexpr absl::Duration kMaxDataDelay = absl::Milliseconds(2'500);

}  // namespace

Group::Group(World& world, const GroupId& id, uint32_t ranks, const JobPlan& plan)
    : world_(world), id_(id), ranks_(ranks), plan_(plan) {
  if (plan.divides_model()) model_parallel_ = std::make_unique<ModelParallel>(world, *this, plan);
}

void Group::Enter(Trainer* trainer) { trainers_[trainer->id().rank] = trainer; }

Trainer* Group::RankZero() {
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

void Group::Leave(Trainer* trainer, bool orderly) {
  bool was_in = trainers_.erase(trainer->id().rank) > 0;
  if (!was_in || orderly || over_ || !trainer->joined()) return;
  BreakAll();
}

void Group::BreakAll() {
  over_ = true;
  for (auto& [rank, trainer] : trainers_) {
    if (!trainer->joined()) continue;
    world_.engine.After(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(200)),
                        [trainer = trainer->shared_from_this(), step = step_ + 1] { trainer->PeerDisconnected(step); });
  }
}

void Group::Go() {
  bool all = IsComplete() &&
             std::all_of(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second->has_go(); });
  if (!all || stepping_ || over_) return;
  stepping_ = true;
  world_.judge.Began(id_);
  step_ = first_step_ - 1;
  if (step_ >= plan_.steps) return EndAll(/*stopped=*/false);  // resumed after the last step
  ScheduleStep();
}

void Group::ScheduleStep() {
  step_time_ = plan_.step_time * (0.9 + 0.2 * world_.random.Unit());
  step_began_ = world_.engine.now();
  compute_time_ = kComputeShare * step_time_;
  if (model_parallel_ != nullptr) return model_parallel_->BeginStep(compute_time_);
  absl::Duration slowest = compute_time_;
  for (auto& [rank, trainer] : trainers_) slowest = std::max(slowest, ComputeTime(*trainer));
  absl::Duration duration = slowest + (1 - kComputeShare) * step_time_ + MaxResendDelay();
  world_.engine.After(duration, [self = shared_from_this()] { self->TryStep(); });
}

void Group::AllArrived() {
  world_.engine.After((1 - kComputeShare) * step_time_ + MaxResendDelay(),
                      [self = shared_from_this()] { self->TryStep(); });
}

Trainer* Group::Find(uint32_t rank) {
  const auto at = trainers_.find(rank);
  return at == trainers_.end() ? nullptr : at->second;
}

bool Group::LeaveOutOperation(const Trainer& trainer, uint64_t after) {
  // The coordinator ends the stalled group only if it knows the usual time of a step, which takes a few steps.
  constexpr uint64_t kKnownSteps = 3;
  if (!CanStall() || step_ < first_step_ + kKnownSteps) return false;
  model_parallel_->LeaveOutOperation(trainer.id().rank, after);
  return true;
}

void Group::NoteLeftOut(uint32_t rank) {
  world_.judge.NoteHarm(id_, "a rank left out an operation");
  world_.judge.NoteFaulty({id_.first, id_.second, rank});
}

void Group::Report(const Trainer& trainer, v1::RankReport& report) const {
  if (model_parallel_ != nullptr) model_parallel_->Report(trainer.id().rank, report);
}

absl::Duration Group::ComputeTime(const Trainer& trainer) const {
  if (model_parallel_ != nullptr) return model_parallel_->ComputeTime(trainer.id().rank);
  return compute_time_ * trainer.slowness();
}

// A rank that has computed its part of a step waits for slower ranks. Between steps no rank computes.
bool Group::IsComputing(const Trainer& trainer) const {
  if (model_parallel_ != nullptr) return model_parallel_->IsRunning(trainer.id().rank);
  if (step_began_ == absl::InfiniteFuture()) return false;
  return world_.engine.now() < step_began_ + ComputeTime(trainer);
}

// The delay that lost packets cause on the slowest host's link: all ranks wait for it. Zero on one host.
absl::Duration Group::MaxResendDelay() const {
  absl::Duration longest;
  std::set<Machine*> hosts;
  for (const auto& [rank, trainer] : trainers_) hosts.insert(&trainer->machine());
  if (hosts.size() < 2) return longest;
  for (Machine* host : hosts) longest = std::max(longest, world_.network.ResendDelay(*host, kMaxDataDelay));
  return longest;
}

bool Group::WaitWhileCut(bool connected) {
  if (connected) {
    cut_since_ = absl::InfiniteFuture();
    return false;
  }
  cut_since_ = std::min(cut_since_, world_.engine.now());
  world_.judge.NoteHarm(id_, "its ranks were disconnected from each other");
  return world_.engine.now() - cut_since_ >= kCutLimit;
}

bool Group::DataArrives(const std::vector<uint32_t>& ranks) {
  std::set<const Machine*> hosts;
  for (uint32_t rank : ranks) {
    if (Trainer* trainer = Find(rank)) hosts.insert(&trainer->machine());
  }
  if (hosts.size() < 2) return true;  // through shared memory
  const bool connected = world_.AllReachEachOther(hosts);
  if (WaitWhileCut(connected)) BreakAll();
  return connected;
}

void Group::TryStep() {
  if (over_ || world_.judge.violation().has_value()) return;
  const bool connected = Connected();
  if (WaitWhileCut(connected)) return BreakAll();
  if (!connected || AnyFrozen()) {
    world_.engine.After(kStepPollInterval, [self = shared_from_this()] { self->TryStep(); });
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
  if (plan_.evaluate_every > 0 && step_ % plan_.evaluate_every == 0) RankZero()->Evaluated(step_);
  const bool last = step_ >= plan_.steps;
  const bool stopped = (RankZero()->stop_requested() || leave_requested_) && !last;
  const bool due = plan_.save_every > 0 && step_ % plan_.save_every == 0;
  if (last || (stopped && plan_.save_every > 0)) {
    for (auto& [rank, trainer] : trainers_) trainer->SetPhase("save");
    return SaveThenEnd(stopped, /*begun=*/false);
  }
  if (last || stopped) return EndAll(stopped);
  if (due || save_pending_ || (retry_at_ > 0 && step_ >= retry_at_)) BeginSave();
  ScheduleStep();
}

// A save runs in parallel with later steps. Saves that become due while one runs are merged into one that follows it.
void Group::BeginSave() {
  save_pending_ = saving_ != 0;
  if (save_pending_) return;
  saving_ = step_;
  retry_at_ = 0;
  parts_.clear();
  part_failed_ = false;
  auto trainers = trainers_;
  for (auto& [rank, trainer] : trainers) trainer->BeginPart(step_);
}

// When all parts have ended, all ranks know whether one failed. If so, the save is retried after 1, 2, 4, ... steps.
void Group::PartEnded(uint64_t step, uint32_t rank, bool written) {
  if (step != saving_) return;
  parts_.insert(rank);
  part_failed_ |= !written;
  if (parts_.size() < ranks_) return;
  saving_ = 0;
  retry_after_ = !part_failed_ ? 0 : std::min<uint64_t>(std::max<uint64_t>(2 * retry_after_, 1), plan_.save_every);
  if (part_failed_) retry_at_ = step_ + retry_after_;
  if (RankZero() == nullptr) return;
  if (part_failed_) return RankZero()->AbandonSave(step);
  RankZero()->Assemble(step);
}

// Makes the last save, after a save in progress, and ends the group. All ranks wait for the parts; only rank 0 waits
// until the save has its name.
void Group::SaveThenEnd(bool stopped, bool begun) {
  if (over_ || world_.judge.violation().has_value() || RankZero() == nullptr) return;
  // kClaimSaved is a planted bug (mutation.h): the last save is reported without being made.
  if (!stopped && world_.mutation == Mutation::kClaimSaved) {
    RankZero()->ClaimSaved(step_);
    return EndAll(stopped);
  }
  const bool assembled = begun && (part_failed_ || stopped || RankZero()->assembled(step_));
  if (saving_ == 0 && !AnyFrozen() && (assembled || !begun)) {
    // If the state could not be saved, the ranks do not stop: they resume, or retry the last save.
    const bool resumes = begun && stopped && part_failed_ && RankZero()->CancelStop(step_);
    if (resumes) return ScheduleStep();
    if (begun && !stopped && LastSaveFailed()) return RetryLastSave();
    if (begun) return EndAll(stopped);
    BeginSave();
    begun = true;
  }
  world_.engine.After(kPartsPollInterval,
                      [self = shared_from_this(), stopped, begun] { self->SaveThenEnd(stopped, begun); });
}

bool Group::LastSaveFailed() { return part_failed_ || RankZero()->abandoned(step_); }

bool Group::WillRetry(uint64_t step) {
  if (step < plan_.steps || leave_requested_ || RankZero() == nullptr || RankZero()->gives_up()) return false;
  return world_.engine.now() < last_save_until_;
}

void Group::RetryLastSave() {
  last_save_until_ = std::min(last_save_until_, world_.engine.now() + kLastSaveRetry);
  if (!WillRetry(step_)) return EndAll(/*stopped=*/false, kDiskFullError);
  last_pause_ = std::min(kLastPauseMax, std::max(kLastPauseMin, 2 * last_pause_));
  world_.engine.After(last_pause_, [self = shared_from_this()] {
    if (self->over_ || self->RankZero() == nullptr) return;
    self->RankZero()->RestartSave(self->step_);
    self->SaveThenEnd(/*stopped=*/false, /*begun=*/false);
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
