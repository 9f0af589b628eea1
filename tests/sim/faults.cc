// What breaks, and how it heals.
#include <csignal>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kSlowCommit = absl::Milliseconds(800);
constexpr absl::Duration kQuickCommit = absl::Milliseconds(2);

}  // namespace

void World::Begin(const Fault& fault) {
  if (healed_) return;
  Machine& machine = *machines_[fault.host % machines_.size()];
  judge.Trace(
      absl::StrCat("fault: ", NameOf(fault.kind), " ", fault.kind >= FaultKind::kCrashDaemon ? machine.name() : ""));
  switch (fault.kind) {
    case FaultKind::kCrashCoordinator:
      coordinator.Crash();
      break;
    case FaultKind::kPauseCoordinator:
      coordinator.Pause();
      break;
    case FaultKind::kSlowStore:
      coordinator.commit_time = kSlowCommit;
      break;
    case FaultKind::kFullStore:
      coordinator.store.full = true;
      break;
    case FaultKind::kStepClock:
      coordinator.wall_offset = absl::Seconds(static_cast<int64_t>(fault.salt % 7'200) - 3'600);
      break;
    case FaultKind::kCrashDaemon:
      machine.daemon().Crash();
      break;
    case FaultKind::kKillHost:
      machine.Kill();
      break;
    case FaultKind::kCrashTrainer:
      return CrashTrainer(fault);
    case FaultKind::kFreezeTrainer:
      return FreezeTrainer(fault);
    case FaultKind::kCutHost:
      machine.CutData();
      machine.CutControl();
      break;
    case FaultKind::kCutControl:
      machine.CutControl();
      break;
    case FaultKind::kDropStream:
      return network.Drop(machine);
    case FaultKind::kSilenceStream:
      return network.Silence(machine);
    case FaultKind::kFullDisk:
      machine.disk_full = true;
      break;
  }
  engine.After(fault.lasts, [this, fault] { End(fault); });
}

void World::End(const Fault& fault) {
  Machine& machine = *machines_[fault.host % machines_.size()];
  switch (fault.kind) {
    case FaultKind::kCrashCoordinator:
      return coordinator.Start();
    case FaultKind::kPauseCoordinator:
      return coordinator.Continue();
    case FaultKind::kSlowStore:
      coordinator.commit_time = kQuickCommit;
      return;
    case FaultKind::kFullStore:
      coordinator.store.full = false;
      return;
    case FaultKind::kCrashDaemon:
      return machine.daemon().Start();
    case FaultKind::kKillHost:
      return machine.Boot();
    case FaultKind::kCutHost:
      machine.HealData();
      return machine.HealControl();
    case FaultKind::kCutControl:
      return machine.HealControl();
    case FaultKind::kFullDisk:
      machine.disk_full = false;
      return;
    default:
      return;
  }
}

void World::CrashTrainer(const Fault& fault) {
  Machine& machine = *machines_[fault.host % machines_.size()];
  if (machine.trainers().empty()) return;
  auto at = std::next(machine.trainers().begin(), static_cast<ptrdiff_t>(fault.salt % machine.trainers().size()));
  std::shared_ptr<Trainer> trainer = at->second;
  judge.Harm(agent::GroupOf(trainer->id()), "a rank crashed");
  if (fault.salt % 2 == 0) {
    trainer->Signal(SIGSEGV);
  } else {
    trainer->Exit(1);
  }
}

void World::FreezeTrainer(const Fault& fault) {
  Machine& machine = *machines_[fault.host % machines_.size()];
  if (machine.trainers().empty()) return;
  auto at = std::next(machine.trainers().begin(), static_cast<ptrdiff_t>(fault.salt % machine.trainers().size()));
  at->second->Freeze();
  frozen_.push_back(at->second);
  engine.After(fault.lasts, [weak = std::weak_ptr<Trainer>(at->second)] {
    if (auto trainer = weak.lock()) trainer->Thaw();
  });
}

// From here on nothing new breaks; what is broken for longer than its fault's end ends by itself.
void World::Heal() {
  judge.Trace("-- no more faults --");
  absl::Duration last = absl::ZeroDuration();
  for (const Fault& fault : scenario.faults) last = std::max(last, fault.at + fault.lasts - scenario.faults_end);
  healed_ = last <= absl::ZeroDuration();
  if (!healed_) {
    engine.After(last, [this] {
      healed_ = true;
      judge.Trace("-- all is healed --");
    });
  }
  KeepRight();
}

void World::KeepRight() {
  CheckBounds();
  operators.SetRight();
  engine.After(absl::Seconds(1), [this] { KeepRight(); });
}

}  // namespace trainyard::sim
