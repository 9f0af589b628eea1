#include "tests/sim/daemon_process.h"

#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"
#include "worker/agent/outbox_file.h"

namespace trainyard::sim {
namespace {

// As in worker/agent/daemon.cc.
constexpr char kMasterValue[] = "command/master";

agent::CoreOptions MakeOptions(World& world, const Machine& machine, Incarnation incarnation) {
  agent::CoreOptions options;
  options.coordinator = "sim";
  options.host = machine.name();
  options.incarnation = incarnation;
  options.slots = machine.plan().slots + (world.mutation == Mutation::kClaimSlots ? 2 : 0);
  options.inventory.set_cores(8);
  options.inventory.set_data_address("10.0.0.1");
  options.cluster_id = machine.cluster;
  if (auto contents = agent::ReadOutboxFile(machine.outbox); contents.ok()) options.outbox = *std::move(contents);
  options.make_outbox_id = [&world] { return absl::StrCat("outbox-", world.random.Next()); };
  options.make_token = [&world] { return absl::StrCat("token-", world.random.Next()); };
  options.random = [&world] { return world.random.Unit(); };
  options.interface_address = [](const std::string&) -> absl::StatusOr<std::string> { return "10.0.0.1"; };
  return options;
}

}  // namespace

void DaemonProcess::Start() {
  if (alive() || !machine_.up()) return;
  ++incarnation_;
  core_ = std::make_unique<agent::Core>(MakeOptions(world_, machine_, Incarnation(world_.random.Next() | 1)));
  world_.judge.Trace(absl::StrCat(machine_.name(), ": daemon, incarnation ", incarnation_));
  const uint64_t incarnation = incarnation_;
  std::vector<agent::Event> found;
  for (const auto& [id, folder] : machine_.folders) {
    found.push_back(agent::ProcessFound{.id = id,
                                        .token = folder.token,
                                        .pid = folder.pid,
                                        .command_grace = folder.command_grace,
                                        .reported = folder.reported,
                                        .stopped = folder.stopped});
    if (!folder.reported && folder.exited.has_value()) found.push_back(agent::ProcessEnded{id, *folder.exited});
  }
  found.push_back(agent::AllFound{});
  for (agent::Event& event : found) Post(incarnation, std::move(event));
}

void DaemonProcess::Crash() {
  if (!alive()) return;
  world_.judge.Trace(absl::StrCat(machine_.name(), ": daemon crashes"));
  attached_ = false;
  // No other process has the unsent reports of ended ranks.
  for (const auto& [id, folder] : machine_.folders) {
    if (!folder.reported && !machine_.Runs(id)) world_.judge.NoteLostReports(id.job);
  }
  core_.reset();
  values_.clear();
  awaiting_master_.clear();
  if (storing_.has_value()) WriteOutbox(*std::exchange(storing_, std::nullopt), world_.random.Unit());

  for (auto& [link, pipe] : std::exchange(pipes_, {})) {
    pipe->up->Clear();
    pipe->over = true;
    if (Trainer* trainer = machine_.Find(pipe->trainer)) trainer->PipeEnded(pipe, absl::UnavailableError("gone"));
  }
  world_.network.DaemonDied(machine_);
}

void DaemonProcess::Terminate(bool stop_trainers, absl::Duration away) {
  if (!alive()) return;
  away_ = away;
  Post(incarnation_,
       agent::LeaveRequested{stop_trainers ? agent::Leaving::kStopTrainers : agent::Leaving::kKeepTrainers});
}

void DaemonProcess::Post(uint64_t incarnation, agent::Event event) {
  if (!alive() || incarnation != incarnation_ || world_.judge.violation().has_value()) return;
  bool welcomed = std::holds_alternative<agent::Welcomed>(event);
  bool ended = std::holds_alternative<agent::SessionEnded>(event);
  if (ended) attached_ = false;
  ++world_.daemon_events;
  for (agent::Effect& effect : core_->Handle(std::move(event), world_.LocalTime(machine_))) {
    if (!alive() || incarnation != incarnation_) return;
    std::visit([this](auto& what) { Do(what); }, effect);
  }
  if (!alive() || incarnation != incarnation_) return;
  if (ended && world_.mutation == Mutation::kKillOnLostContact) {
    auto trainers = machine_.trainers();
    for (auto& [id, trainer] : trainers) machine_.Signal(id, SIGKILL);
  }
  if (welcomed) {
    attached_ = true;
    for (auto& [group, values] : values_) SendPuts(group, values.puts);
  }
  WakeLater();
}

void DaemonProcess::WakeLater() {
  absl::Time wake = core_->NextWake();
  const uint64_t number = ++wake_;
  if (wake == absl::InfiniteFuture()) return;
  // Wakes the core one microsecond late, because rounding must never wake it early.
  absl::Time real = world_.RealTime(machine_, wake) + absl::Microseconds(1);
  world_.engine.At(real, [this, number, incarnation = incarnation_] {
    if (number == wake_) Post(incarnation, agent::Tick{});
  });
}

// ---- trainers ----

PipePtr DaemonProcess::Connect(const v1::RegisterTrainer& registration) {
  auto pipe = std::make_shared<Pipe>();
  pipe->link = agent::LinkId(++last_link_);
  pipe->incarnation = incarnation_;
  pipe->trainer = agent::FromProto(registration.key());
  pipe->up = std::make_shared<Channel>(world_.engine, [] { return false; });
  pipe->down = std::make_shared<Channel>(world_.engine, [] { return false; });
  pipes_[pipe->link] = pipe;
  pipe->up->Send(absl::Microseconds(200), [this, pipe, registration] {
    Post(pipe->incarnation, agent::LinkOpened{pipe->link, registration});
  });
  return pipe;
}

void DaemonProcess::Do(agent::SendLinkMessage& effect) {
  auto at = pipes_.find(effect.link);
  if (at == pipes_.end()) return;
  auto message = std::make_shared<v1::LinkMessage>(std::move(effect.message));
  at->second->down->Send(absl::Microseconds(200), [this, pipe = at->second, message] {
    Trainer* trainer = machine_.Find(pipe->trainer);
    if (trainer != nullptr) trainer->HandleMessage(pipe, *message);
  });
}

void DaemonProcess::Do(agent::CloseLink& effect) {
  auto at = pipes_.find(effect.link);
  if (at == pipes_.end()) return;
  PipePtr pipe = at->second;
  pipes_.erase(at);
  pipe->down->Send(absl::Microseconds(200), [this, pipe, status = effect.status] {
    pipe->over = true;
    Trainer* trainer = machine_.Find(pipe->trainer);
    if (trainer != nullptr) trainer->PipeEnded(pipe, status);
  });
}

void DaemonProcess::Do(agent::StartProcess& effect) {
  auto launch = [this, incarnation = incarnation_, desired = effect.desired, token = effect.token] {
    if (incarnation == incarnation_ && alive() && machine_.up()) machine_.Launch(incarnation, desired, token);
  };
  world_.engine.After(world_.random.Between(absl::Microseconds(500), absl::Milliseconds(10)), launch);
  if (world_.mutation == Mutation::kStartTwice && world_.random.Chance(0.05)) {
    world_.engine.After(absl::Milliseconds(30), launch);
  }
}

void DaemonProcess::Do(agent::SignalProcess& effect) {
  world_.engine.After(
      world_.random.Between(absl::Microseconds(100), absl::Milliseconds(2)),
      [this, incarnation = incarnation_, id = effect.id, signal = effect.signal, stops = effect.to_group] {
        if (incarnation != incarnation_ || !alive()) return;
        const auto folder = machine_.folders.find(id);
        if (stops && folder != machine_.folders.end()) folder->second.stopped = true;
        machine_.Signal(id, signal);
      });
}

// `part` is the share of the bytes that was written before a crash. A replacement uses rename, so it is atomic.
void DaemonProcess::WriteOutbox(const agent::StoreFacts& store, double part) {
  size_t count = static_cast<size_t>(static_cast<double>(store.bytes.size()) * part);
  if (!store.replace) {
    machine_.outbox.append(store.bytes, 0, count);
  } else if (part >= 0.5) {
    machine_.outbox = store.bytes;
  }
}

void DaemonProcess::Do(agent::StoreFacts& effect) {
  storing_ = std::move(effect);
  absl::Duration takes = world_.random.Chance(0.95)
                             ? world_.random.Between(absl::Microseconds(100), absl::Milliseconds(5))
                             : absl::Milliseconds(400);
  world_.engine.After(takes, [this, incarnation = incarnation_] {
    if (incarnation != incarnation_ || !storing_.has_value()) return;
    agent::StoreFacts store = *std::exchange(storing_, std::nullopt);
    if (machine_.disk_full) {
      return Post(incarnation, agent::FactsStored{absl::ResourceExhaustedError("No space left on device")});
    }
    WriteOutbox(store, 1);
    Post(incarnation, agent::FactsStored{absl::OkStatus()});
  });
}

void DaemonProcess::Do(agent::SampleProcesses& effect) {
  agent::ProcessesSampled sampled;
  for (const agent::SampleProcesses::Process& process : effect.processes) {
    Trainer* trainer = machine_.Find(process.id);
    if (const Script* script = machine_.FindScript(process.id); script != nullptr) {
      sampled.samples.push_back({.id = process.id, .state = script->frozen() ? "T" : "S", .cpu_s = 0});
    }
    if (trainer == nullptr) continue;
    const bool forged = world_.mutation == Mutation::kForgeStopped && process.id.rank == 0;
    sampled.samples.push_back(
        {.id = process.id, .state = trainer->frozen() || forged ? "T" : "S", .cpu_s = trainer->cpu_s()});
  }
  world_.engine.After(absl::Milliseconds(1),
                      [this, incarnation = incarnation_, sampled] { Post(incarnation, sampled); });
}

void DaemonProcess::Do(agent::ExamineProcess& effect) {
  world_.engine.After(absl::Milliseconds(400), [this, incarnation = incarnation_, effect] {
    Trainer* trainer = machine_.Find(effect.id);
    v1::Examination examination;
    examination.set_request_id(effect.request_id);
    if (trainer != nullptr) examination.set_state(trainer->frozen() ? "T" : "S");
    const Script* script = machine_.FindScript(effect.id);
    if (script != nullptr) examination.set_state(script->frozen() ? "T" : "S");
    Post(incarnation, agent::ProcessExamined{effect.id, examination});
  });
}

// All simulated hosts share one file system, so every path exists on every host.
void DaemonProcess::Do(agent::CheckPath& effect) {
  world_.engine.After(absl::Milliseconds(5), [this, incarnation = incarnation_, effect] {
    v1::PathAnswer answer;
    answer.set_request_id(effect.request_id);
    answer.set_there(true);
    Post(incarnation, agent::PathChecked{answer});
  });
}

void DaemonProcess::Do(agent::MarkReported& effect) {
  auto at = machine_.folders.find(effect.id);
  if (at != machine_.folders.end() && !machine_.disk_full) at->second.reported = true;
}

void DaemonProcess::Do(agent::RememberCluster& effect) {
  if (!machine_.disk_full) machine_.cluster = effect.cluster_id;
}

void DaemonProcess::Do(agent::Log& effect) { world_.judge.Trace(absl::StrCat(machine_.name(), ": ", effect.text)); }

// The daemon exits, and a supervisor starts it again.
void DaemonProcess::Do(agent::Leave&) {
  world_.engine.After(absl::ZeroDuration(), [this, incarnation = incarnation_] {
    if (incarnation != incarnation_) return;
    Crash();
    world_.engine.After(std::exchange(away_, absl::Seconds(1)), [this, incarnation] {
      if (incarnation == incarnation_) Start();
    });
  });
}

// ---- the coordinator ----

void DaemonProcess::Do(agent::Dial& effect) { world_.network.Dial(machine_, effect.hello); }
void DaemonProcess::Do(agent::HangUp& effect) { world_.network.HangUp(machine_, effect.reason); }
void DaemonProcess::Do(agent::SendToCoordinator& effect) {
  world_.network.SendToCoordinator(machine_, std::move(effect.message));
}

void DaemonProcess::Do(agent::AdmitTrainer& effect) { values_.try_emplace(agent::GroupOf(effect.id)); }

// The daemon of rank 0 chooses an address, unless an earlier incarnation has chosen one.
void DaemonProcess::Do(agent::FindMaster& effect) {
  const GroupId group = agent::GroupOf(effect.id);
  Values& values = values_[group];
  awaiting_master_.insert(effect.id);
  if (effect.id.rank == 0 && !values.sealed && !values.known.contains(kMasterValue)) {
    const std::string address = absl::StrCat(effect.data_address, ":", 20'000 + world_.random.Below(10'000));
    values.puts[kMasterValue] = address;
    SendPuts(group, {{kMasterValue, address}});
  }
  PostMaster(group);
}

void DaemonProcess::PostMaster(const GroupId& group) {
  const auto values = values_.find(group);
  if (values == values_.end()) return;
  const auto master = values->second.known.find(kMasterValue);
  if (master == values->second.known.end()) return;
  for (auto at = awaiting_master_.begin(); at != awaiting_master_.end();) {
    const TrainerId id = *at;
    const bool is_its = agent::GroupOf(id) == group;
    at = is_its ? awaiting_master_.erase(at) : std::next(at);
    if (!is_its) continue;
    world_.engine.After(absl::ZeroDuration(), [this, id, incarnation = incarnation_, address = master->second] {
      Post(incarnation, agent::MasterKnown{id, address});
    });
  }
}

void DaemonProcess::Do(agent::SealGroup& effect) {
  auto at = values_.find(effect.group);
  if (at == values_.end()) return;
  at->second.sealed = true;
  at->second.puts.clear();
}

void DaemonProcess::Do(agent::EndGroup& effect) {
  values_.erase(effect.group);
  std::erase_if(awaiting_master_, [&](const TrainerId& id) { return agent::GroupOf(id) == effect.group; });
}

void DaemonProcess::TakeValues(uint64_t incarnation, const v1::StoreValues& values) {
  if (incarnation != incarnation_ || !alive()) return;
  const GroupId group(JobId(values.job_id()), Generation(values.generation()));
  v1::StoreValueList list;
  auto at = values_.find(group);
  if (at == values_.end() || !list.ParseFromString(values.values())) return;
  for (const v1::StoreValue& value : list.values()) at->second.known[value.name()] = value.value();
  PostMaster(group);
  auto trainers = machine_.trainers();
  for (auto& [id, trainer] : trainers) {
    if (agent::GroupOf(id) == group) trainer->JoinWhenPossible();
  }
}

void DaemonProcess::PutValue(const TrainerId& id, const std::string& value) {
  auto at = values_.find(agent::GroupOf(id));
  if (at == values_.end() || at->second.sealed) return;
  std::string name = absl::StrCat("address/", id.rank);
  at->second.puts[name] = value;
  SendPuts(at->first, {{name, value}});
}

void DaemonProcess::SendPuts(const GroupId& group, const std::map<std::string, std::string>& puts) {
  if (!attached_ || puts.empty()) return;  // they are sent when the next stream is welcomed
  v1::AgentMessage message;
  v1::PutValues& put = *message.mutable_put();
  put.set_job_id(group.first.value());
  put.set_generation(group.second.value());
  for (const auto& [name, value] : puts) {
    v1::StoreValue& added = *put.add_values();
    added.set_name(name);
    added.set_value(value);
  }
  world_.network.SendToCoordinator(machine_, std::move(message));
}

bool DaemonProcess::HasValues(const GroupId& group, uint32_t ranks) const {
  auto at = values_.find(group);
  return at != values_.end() && at->second.known.size() >= ranks;
}

}  // namespace trainyard::sim
