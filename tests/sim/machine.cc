#include "tests/sim/machine.h"

#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {

Machine::Machine(World& world, std::string name, const HostPlan& plan)
    : world_(world), name_(std::move(name)), plan_(plan), daemon_(std::make_unique<DaemonProcess>(world, *this)) {}

Trainer* Machine::Find(const TrainerId& id) {
  auto at = trainers_.find(id);
  return at == trainers_.end() ? nullptr : at->second.get();
}

Script* Machine::FindScript(const TrainerId& id) {
  auto at = scripts_.find(id);
  return at == scripts_.end() ? nullptr : at->second.get();
}

void Machine::ReportStartFailure(uint64_t incarnation, const TrainerId& id, const std::string& why) {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  exited.set_message(why);
  exited.set_may_pass(true);  // like any lack of disk space (worker/agent/process_table.cc)
  daemon_->Post(incarnation, agent::ProcessEnded{id, exited});
}

void Machine::Launch(uint64_t incarnation, const v1::DesiredTrainer& desired, const std::string& token) {
  TrainerId id = agent::FromProto(desired.key());
  if (folders.contains(id)) {
    // kStartTwice plants this bug to test the check in Judge::Started, which must find it alone.
    if (world_.mutation != Mutation::kStartTwice) {
      world_.judge.ReportViolation(invariant::kRankOnce,
                                   absl::StrCat(name_, " starts ", agent::Describe(id), " a second time"));
    }
  } else if (disk_full) {
    world_.judge.NoteHarm(agent::GroupOf(id), "disk full");
    return ReportStartFailure(incarnation, id, "No space left on device");
  }
  folders[id] = {.token = token, .pid = 0, .exited = std::nullopt, .reported = false};
  if (const JobPlan& plan = world_.PlanOf(id.job); plan.is_script()) folders[id].command_grace = plan.grace;
  world_.engine.After(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(8)), [this, id, desired, token] {
    if (!up_) return;
    int64_t pid = world_.NewPid();
    folders[id].pid = pid;
    world_.judge.Started(id, name_, pid);
    StartProcess(id, pid, desired, token);
  });
}

void Machine::StartProcess(const TrainerId& id, int64_t pid, const v1::DesiredTrainer& desired,
                           const std::string& token) {
  const JobPlan& plan = world_.PlanOf(id.job);
  if (plan.is_script()) {
    world_.judge.ScriptStarted(pid, desired.world_size());
    scripts_[id] = std::make_shared<Script>(world_, *this, id, pid, desired.world_size(), plan);
  } else {
    trainers_[id] = std::make_shared<Trainer>(world_, *this, id, token, pid, desired.world_size());
  }
  if (const size_t running = trainers_.size() + scripts_.size(); running > plan_.slots) {
    world_.judge.ReportViolation(invariant::kSlots,
                                 absl::StrCat(name_, " has ", plan_.slots, " slots and runs ", running, " trainers"));
  }
  daemon_->Post(daemon_->incarnation(), agent::ProcessStarted{id, pid});
  if (auto pending = pending_signals_.find(id); pending != pending_signals_.end()) return Signal(id, pending->second);
  if (Script* script = FindScript(id); script != nullptr) script->Boot();
  if (Trainer* trainer = Find(id); trainer != nullptr) trainer->Boot();
}

void Machine::Signal(const TrainerId& id, int signal) {
  if (const auto script = scripts_.find(id); script != scripts_.end()) {
    world_.judge.Trace(absl::StrCat(name_, ": signal ", signal, " to ", agent::Describe(id)));
    const std::shared_ptr<Script> signalled = script->second;
    return signalled->Signal(signal);
  }
  auto at = trainers_.find(id);
  if (at == trainers_.end()) {
    auto folder = folders.find(id);
    if (folder != folders.end() && folder->second.pid == 0) pending_signals_[id] = signal;
    return;
  }
  world_.judge.Trace(absl::StrCat(name_, ": signal ", signal, " to ", agent::Describe(id)));
  std::shared_ptr<Trainer> trainer = at->second;
  trainer->Signal(signal);
}

void Machine::Ended(const TrainerId& id, const v1::TrainerExited& exited) {
  trainers_.erase(id);
  scripts_.erase(id);
  world_.engine.After(world_.random.Between(absl::Microseconds(200), absl::Milliseconds(5)), [this, id, exited] {
    if (!up_) return;
    folders[id].exited = exited;
    daemon_->Post(daemon_->incarnation(), agent::ProcessEnded{id, exited});
  });
}

void Machine::Kill() {
  if (!up_) return;
  world_.judge.Trace(absl::StrCat(name_, ": the host dies"));
  world_.network.Cut(*this);  // neither end is notified
  up_ = false;
  daemon_->Crash();
  for (const auto& [id, folder] : folders) {
    if (!folder.exited.has_value())
      world_.judge.NoteHarm(agent::GroupOf(id), "its host died before the end was recorded");
  }
  for (auto& [id, trainer] : std::exchange(trainers_, {})) {
    world_.judge.NoteHarm(agent::GroupOf(id), "its host died");
    world_.judge.NoteLostReports(id.job);
    trainer->Disconnect();
  }
  for (auto& [id, script] : std::exchange(scripts_, {})) {
    world_.judge.NoteHarm(agent::GroupOf(id), "its host died");
    script->Disconnect();
  }
}

void Machine::Boot() {
  if (up_) return;
  world_.judge.Trace(absl::StrCat(name_, ": the host is back"));
  up_ = true;
  for (auto& [id, folder] : folders) {
    if (folder.exited.has_value()) continue;
    folder.exited.emplace();
    folder.exited->set_cause(v1::TrainerExited::CAUSE_LOST);
    folder.exited->set_message("its shim exited without a record");
  }
  daemon_->Start();
  world_.network.PumpAll();
}

void Machine::CutControl() {
  ++cuts_control_;
  world_.judge.Trace(absl::StrCat(name_, ": cut from the coordinator"));
  world_.network.Cut(*this);
}

void Machine::CutData() {
  ++cuts_data_;
  for (auto& [id, trainer] : trainers_) world_.judge.NoteHarm(agent::GroupOf(id), "its host was cut off");
  for (auto& [id, script] : scripts_) world_.judge.NoteHarm(agent::GroupOf(id), "its host was cut off");
}

void Machine::HealControl() {
  if (--cuts_control_ > 0) return;
  world_.judge.Trace(absl::StrCat(name_, ": reaches the coordinator again"));
  world_.network.PumpAll();
}

void Machine::HealData() { --cuts_data_; }

}  // namespace trainyard::sim
