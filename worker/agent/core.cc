#include "worker/agent/core.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace trainyard::agent {
namespace {

// How long a daemon that stops its trainers waits for the coordinator to receive the last exits.
constexpr absl::Duration kFinalReportsWait = absl::Seconds(1);
// How long to wait for the exit records of killed trainers. A trainer in an uninterruptible call is left to its shim.
constexpr absl::Duration kKillWait = absl::Seconds(3);

// How long a daemon that was released from its lifeline and has no trainers waits for a coordinator, which may be
// restarting.
constexpr absl::Duration kIdleWait = absl::Seconds(10);

}  // namespace

Core::Core(CoreOptions options)
    : options_(std::move(options)),
      data_address_(options_.inventory.data_address()),
      data_interface_(options_.data_interface),
      outbox_(options_.outbox, options_.make_outbox_id()),
      cluster_id_(options_.cluster_id) {}

std::vector<Effect> Core::Handle(Event event, absl::Time now) {
  now_ = now;
  effects_.clear();
  next_wake_ = absl::InfiniteFuture();
  std::visit([this](auto& e) { On(std::move(e)); }, event);

  for (auto& [id, trainer] : trainers_) ReportExitWhenDue(trainer);
  KillWhenDue();
  SampleWhenDue();
  SendReports(/*only_due=*/true);
  StoreFactsWhenDue();
  SendFactsWhenDue();
  UpdateAppliedRevision();
  SendHeartbeatWhenDue();
  DialWhenDue();
  ForgetEndedTrainers();
  LeaveWhenDue();
  LeaveWhenIdle();
  return std::move(effects_);
}

void Core::WakeBy(absl::Time time) { next_wake_ = std::min(next_wake_, time); }

bool Core::AnyAlive() const {
  return std::any_of(trainers_.begin(), trainers_.end(),
                     [](const auto& entry) { return entry.second.process != Process::kEnded; });
}

void Core::On(LeaveRequested event) {
  if (event.how == Leaving::kWhenIdle) {
    leaves_when_idle_ = true;
    return;
  }
  if (leaving_.has_value() && event.how <= *leaving_) {
    // A second SIGTERM while trainers are asked to end: kill them now.
    if (*leaving_ != Leaving::kStopTrainers) return;
    event.how = Leaving::kKillTrainers;
  }
  leaving_ = event.how;
  if (event.how == Leaving::kKeepTrainers) {
    leave_by_ = now_;
    return;
  }
  // From now on the coordinator must not send new work.
  draining_ = true;
  heartbeat_at_ = std::min(heartbeat_at_, now_);
  bool kill = event.how == Leaving::kKillTrainers;
  for (auto& [group, check] : checks_) {
    // A check that has passed or failed has no process.
    if (!check.passed && !check.refusal.has_value()) check.kill_at = std::min(check.kill_at, now_);
  }
  leave_by_ = now_ + (kill ? kKillWait : limits::kStopGrace + kKillWait);
  for (auto& [id, trainer] : trainers_) {
    if (trainer.process == Process::kEnded) continue;
    const bool is_command = trainer.command_grace.has_value();
    if (is_command) trainer.asked_to_abort = true;
    if (!kill && is_command) EndCommand(trainer);
    if (!kill && !is_command) Signal(trainer, SIGTERM);
    trainer.kill_at = std::min(trainer.kill_at, kill ? now_ : now_ + limits::kStopGrace);
  }
}

void Core::KillWhenDue() {
  KillChecksWhenDue();
  for (auto& [id, trainer] : trainers_) {
    if (trainer.process == Process::kEnded || trainer.killed) continue;
    if (trainer.kill_at <= now_) {
      Signal(trainer, SIGKILL);
    } else {
      WakeBy(trainer.kill_at);
    }
  }
}

// The private coordinator next to this daemon exits when its jobs have ended; after that the daemon has no work.
void Core::LeaveWhenIdle() {
  if (!leaves_when_idle_ || leaving_.has_value() || left_) return;
  if (stream_ == Stream::kUp || AnyAlive()) {
    idle_since_ = absl::InfiniteFuture();
    return;
  }
  idle_since_ = std::min(idle_since_, now_);
  if (now_ < idle_since_ + kIdleWait) return WakeBy(idle_since_ + kIdleWait);
  left_ = true;
  LogInfo("released from the lifeline, and neither a trainer nor the coordinator is left: leaving");
  Emit(Leave{.exit_code = 0, .remove_snapshots = true});
}

void Core::LeaveWhenDue() {
  if (!leaving_.has_value() || left_) return;
  // Wait a moment to report the last exits, but not if there is no coordinator.
  bool has_final_reports = !outbox_.empty() && stream_ == Stream::kUp && *leaving_ == Leaving::kStopTrainers;
  if (!AnyAlive() && *leaving_ != Leaving::kKeepTrainers) {
    leave_by_ = std::min(leave_by_, has_final_reports ? now_ + kFinalReportsWait : now_);
  }
  if (leave_by_ > now_) {
    WakeBy(leave_by_);
    return;
  }
  left_ = true;
  const bool none_needed = !AnyAlive() && snapshot_jobs_.has_value() && snapshot_jobs_->empty();
  Emit(Leave{.exit_code = 0, .remove_snapshots = *leaving_ != Leaving::kKeepTrainers || none_needed});
}

CoreStats Core::stats() const {
  CoreStats stats = counts_;
  stats.facts_waiting = outbox_.size();
  stats.outbox_bytes = outbox_.bytes();
  stats.outbox_on_disk = outbox_.on_disk();
  stats.outbox_hangs = disk_hangs_;
  stats.trouble = !trouble_.empty();
  stats.attached = stream_ == Stream::kUp;
  stats.trainers = static_cast<size_t>(std::count_if(
      trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second.process == Process::kRunning; }));
  return stats;
}

// Forgets trainers that have ended, are reported and are not wanted any more.
void Core::ForgetEndedTrainers() {
  for (auto at = trainers_.begin(); at != trainers_.end();) {
    const Trainer& trainer = at->second;
    bool over = trainer.process == Process::kEnded && trainer.exit_reported && !trainer.wanted;
    if (over && trainer.link != LinkId()) {
      links_.erase(trainer.link);
      Emit(CloseLink{trainer.link, absl::AbortedError(absl::StrCat(Describe(trainer.id), " is over"))});
    }
    at = over ? trainers_.erase(at) : std::next(at);
  }
}

}  // namespace trainyard::agent
