// The faults: how they begin and end.
#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kSlowCommit = absl::Milliseconds(800);
constexpr absl::Duration kQuickCommit = absl::Milliseconds(2);
// About the number of points at which a fault can strike (Trainer::After) during two saves.
constexpr uint64_t kSavePoints = 24;
// A stopped rank must be blamed within this time: 3 s without progress, and the intervals of reports.
constexpr absl::Duration kBlameLimit = absl::Seconds(12);
// How long a fault that has ended may affect reports.
constexpr absl::Duration kDisturbedFor = absl::Seconds(20);

}  // namespace

void World::Begin(const Fault& fault) {
  if (healed_) return;
  Machine& machine = *machines_[fault.host % machines_.size()];
  judge.Trace(absl::StrCat("fault: ", NameOf(fault.kind), " ", IsOfHost(fault.kind) ? machine.name() : ""));
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
    default:
      return BeginAtHost(fault, machine);
  }
  engine.After(fault.lasts, [this, fault] { End(fault); });
}

void World::BeginAtHost(const Fault& fault, Machine& machine) {
  switch (fault.kind) {
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
    case FaultKind::kSlowTrainer:
      return SlowTrainer(fault);
    case FaultKind::kLeaveOut:
      return LeaveOutOperation(fault);
    case FaultKind::kCutHost:
      machine.CutData();
      machine.CutControl();
      break;
    case FaultKind::kCutControl:
      machine.CutControl();
      break;
    case FaultKind::kCutData:
      ++data_cuts_[PairOf(fault)];
      break;
    case FaultKind::kDropStream:
      return network.Drop(machine);
    case FaultKind::kSilenceStream:
      return network.Silence(machine);
    case FaultKind::kFullDisk:
      machine.disk_full = true;
      break;
    case FaultKind::kFailWrites:
      ++machine.write_faults;
      break;
    case FaultKind::kLossyLink:
      machine.SetPacketLoss(kMaxLoss * static_cast<double>(fault.salt % 100) / 100);
      break;
    case FaultKind::kStrikeSave:
      machine.save_fault = fault;
      machine.save_points = fault.salt % kSavePoints;
      return;
    case FaultKind::kStopDaemon:
      return machine.daemon().Terminate(/*stop_trainers=*/false, fault.lasts);
    case FaultKind::kStopHost:
      return StopHost(fault, machine);
    default:
      return;
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
    case FaultKind::kFailWrites:
      --machine.write_faults;
      return;
    case FaultKind::kCutData:
      --data_cuts_[PairOf(fault)];
      return;
    case FaultKind::kLossyLink:
      return machine.SetPacketLoss(scenario.loss);
    default:
      return;
  }
}

// The two hosts between which the fault cuts the network; with a single host it has no effect.
std::pair<const Machine*, const Machine*> World::PairOf(const Fault& fault) const {
  const size_t count = machines_.size();
  const size_t one = fault.host % count;
  const size_t other = (one + 1 + fault.salt % std::max<size_t>(1, count - 1)) % count;
  return {machines_[std::min(one, other)].get(), machines_[std::max(one, other)].get()};
}

std::shared_ptr<Trainer> World::PickTrainer(const Fault& fault) {
  auto& trainers = machines_[fault.host % machines_.size()]->trainers();
  if (trainers.empty()) return nullptr;
  return std::next(trainers.begin(), static_cast<ptrdiff_t>(fault.salt % trainers.size()))->second;
}

std::shared_ptr<Script> World::PickScript(const Fault& fault) {
  Machine& machine = *machines_[fault.host % machines_.size()];
  auto& scripts = machine.scripts();
  const bool hits_script = !scripts.empty() && (machine.trainers().empty() || fault.salt / 8 % 2 == 0);
  if (!hits_script) return nullptr;
  return std::next(scripts.begin(), static_cast<ptrdiff_t>(fault.salt / 16 % scripts.size()))->second;
}

void World::CrashTrainer(const Fault& fault) {
  if (std::shared_ptr<Script> script = PickScript(fault); script != nullptr) {
    judge.NoteHarm(agent::GroupOf(script->id()), "a rank crashed");
    return fault.salt % 2 == 0 ? script->Signal(SIGSEGV) : script->Exit(1);
  }
  std::shared_ptr<Trainer> trainer = PickTrainer(fault);
  if (trainer == nullptr) return;
  judge.NoteHarm(agent::GroupOf(trainer->id()), "a rank crashed");
  if (fault.salt % 2 == 0) {
    trainer->Signal(SIGSEGV);
  } else {
    trainer->Exit(1);
  }
}

void World::FreezeTrainer(const Fault& fault) {
  if (std::shared_ptr<Script> script = PickScript(fault); script != nullptr) {
    script->Freeze();
    engine.After(fault.lasts, [weak = std::weak_ptr<Script>(script)] {
      if (auto frozen = weak.lock()) frozen->Thaw();
    });
    return;
  }
  std::shared_ptr<Trainer> trainer = PickTrainer(fault);
  if (trainer == nullptr) return;
  trainer->Freeze();
  ExpectHang(*trainer);
  engine.After(fault.lasts, [weak = std::weak_ptr<Trainer>(trainer)] {
    if (auto frozen = weak.lock()) frozen->Thaw();
  });
}

// Checks later that the coordinator has ended the generation of a stopped rank of a divided model in time, unless
// something else has happened.
void World::ExpectHang(Trainer& trainer) {
  if (!trainer.group().CanStall() || !IsQuiet(engine.now() - kDisturbedFor, engine.now() + kBlameLimit)) return;
  engine.After(kBlameLimit, [this, weak = trainer.weak_from_this(), step = trainer.group().step()] {
    const std::shared_ptr<Trainer> stopped = weak.lock();
    if (stopped == nullptr || !stopped->alive() || !stopped->frozen()) return;
    if (stopped->group().over() || stopped->group().step() != step) return;
    judge.CheckBlamed(stopped->id(), kBlameLimit);
  });
}

// Whether no request, and no fault except those of single trainers, can affect a decision in this period.
bool World::IsQuiet(absl::Time from, absl::Time until) const {
  if (scenario.loss > 0) return false;
  const auto overlaps = [&](absl::Duration at, absl::Duration lasts) {
    const absl::Time begin = ClockModel::kOrigin + at;
    return begin < until && begin + lasts + kDisturbedFor > from;
  };
  for (const Operation& operation : scenario.operations) {
    if (overlaps(operation.at, absl::ZeroDuration())) return false;
  }
  return std::none_of(scenario.faults.begin(), scenario.faults.end(), [&](const Fault& fault) {
    const bool of_trainer = fault.kind == FaultKind::kFreezeTrainer || fault.kind == FaultKind::kSlowTrainer ||
                            fault.kind == FaultKind::kLeaveOut || fault.kind == FaultKind::kCrashTrainer;
    return !of_trainer &&
           (fault.when.has_value() || fault.kind == FaultKind::kStrikeSave || overlaps(fault.at, fault.lasts));
  });
}

void World::StrikeInSave(Machine& machine, Trainer& trainer) {
  if (healed_ || !machine.save_fault.has_value() || machine.save_points-- > 0) return;
  Fault fault = *std::exchange(machine.save_fault, std::nullopt);
  judge.Trace(absl::StrCat("fault: strikes ", agent::Describe(trainer.id()), " while it saves"));
  auto begin_also = [&](FaultKind kind) {
    fault.kind = kind;
    Begin(fault);
  };
  auto kill = [&] {
    judge.NoteHarm(agent::GroupOf(trainer.id()), "a rank was killed while it saved");
    trainer.Signal(SIGKILL);
  };
  switch (fault.salt / kSavePoints % 6) {
    case 0:
      return kill();
    case 1:
      return begin_also(FaultKind::kCrashDaemon);
    case 2:
      return begin_also(FaultKind::kCrashCoordinator);
    case 3:
      return begin_also(FaultKind::kKillHost);
    case 4:
      kill();
      begin_also(FaultKind::kCrashDaemon);
      return begin_also(FaultKind::kCrashCoordinator);
    default:
      // The trainer is stopped and its host is cut off; the trainer continues later and has noticed neither.
      trainer.Freeze();
      engine.After(fault.lasts + absl::Seconds(20), [weak = trainer.weak_from_this()] {
        if (auto frozen = weak.lock()) frozen->Thaw();
      });
      return begin_also(FaultKind::kCutHost);
  }
}

// The factor is 1.5 to 2.9, so that a step stays shorter than the smallest hang limit.
void World::SlowTrainer(const Fault& fault) {
  std::shared_ptr<Trainer> trainer = PickTrainer(fault);
  if (trainer != nullptr) trainer->Slow(1.5 + static_cast<double>(fault.salt % 15) / 10, fault.lasts);
}

void World::LeaveOutOperation(const Fault& fault) {
  constexpr uint64_t kOperations = 16;  // about the number of operations of a step
  std::shared_ptr<Trainer> trainer = PickTrainer(fault);
  if (trainer == nullptr || !trainer->group().LeaveOutOperation(*trainer, fault.salt / 64 % kOperations)) return;
  judge.Trace(absl::StrCat(agent::Describe(trainer->id()), " will leave out an operation"));
}

void World::StopHost(const Fault& fault, Machine& machine) {
  for (auto& [id, trainer] : machine.trainers()) judge.NoteHarm(agent::GroupOf(id), "its host was ordered to stop");
  for (auto& [id, script] : machine.scripts()) judge.NoteHarm(agent::GroupOf(id), "its host was ordered to stop");
  machine.daemon().Terminate(/*stop_trainers=*/true, fault.lasts);
}

// From now on the scenario begins no faults. Faults that are still active end later, and then all faults are over.
void World::Heal() {
  judge.Trace("-- no more faults --");
  absl::Duration last = absl::ZeroDuration();
  for (const Fault& fault : scenario.faults) last = std::max(last, fault.at + fault.lasts - scenario.faults_end);
  healed_ = last <= absl::ZeroDuration();
  if (healed_) judge.Healed();
  if (!healed_) {
    engine.After(last, [this] {
      healed_ = true;
      judge.Healed();
      judge.Trace("-- all faults have ended --");
    });
  }
  UnblockJobs();
}

void World::UnblockJobs() {
  CheckBounds();
  CheckGrowth();
  operators.ResumeAndUncordon();
  engine.After(absl::Seconds(1), [this] { UnblockJobs(); });
}

}  // namespace trainyard::sim
