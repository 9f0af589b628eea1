#include "bench/control/simulated_host.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"

namespace trainyard::bench {
namespace {

// The time from the abort request to the exit, in which a real trainer leaves its collective and stops LibTorch's
// threads.
constexpr absl::Duration kAbortDuration = absl::Milliseconds(100);

agent::CoreOptions MakeCoreOptions(const SimulatedHost::Options& options) {
  agent::CoreOptions core{
      .coordinator = options.coordinator,
      .host = options.name,
      .incarnation = Incarnation(options.incarnation),
      .slots = 1,
      .inventory = {},
      .cluster_id = "",
      .make_token = [] { return std::string(32, 't'); },
      // Seeded by the incarnation, so that hosts do not reconnect at the same time after losing the coordinator.
      .random =
          [seed = options.incarnation]() mutable {
            seed = seed * 6'364'136'223'846'793'005ULL + 1'442'695'040'888'963'407ULL;
            return static_cast<double>(seed >> 11) / static_cast<double>(1ULL << 53);
          },
      .interface_address = [](const std::string&) { return absl::StatusOr<std::string>("127.0.0.1"); },
  };
  core.inventory.set_cores(1);
  core.inventory.set_memory_bytes(8ULL << 30);
  core.inventory.set_data_address("127.0.0.1");
  core.inventory.set_version("bench");
  return core;
}

bool IsFromCoordinator(const agent::Event& event) {
  return std::holds_alternative<agent::Welcomed>(event) || std::holds_alternative<agent::DesiredStateReceived>(event) ||
         std::holds_alternative<agent::FactsAcknowledged>(event);
}

}  // namespace

SimulatedHost::SimulatedHost(Options options)
    : options_(std::move(options)),
      core_(MakeCoreOptions(options_)),
      session_(
          DialOptions{.address = options_.coordinator},
          [post = options_.post](agent::Event event) { post(std::move(event)); },
          [post = options_.post](const v1::StoreValues& values) {
            post(ValuesArrived{{JobId(values.job_id()), Generation(values.generation())}, values.count()});
          }) {}

SimulatedHost::~SimulatedHost() = default;

void SimulatedHost::Handle(Item item, absl::Time now) {
  now_ = now;
  EndAborted();
  if (auto* event = std::get_if<agent::Event>(&item)) {
    bool from_coordinator = IsFromCoordinator(*event);
    if (std::holds_alternative<agent::Welcomed>(*event)) options_.reached(Milestone::kAttached, 1);
    if (std::holds_alternative<agent::SessionEnded>(*event)) {
      options_.reached(Milestone::kStreamEnded, 1);
      over_ = left_;
    }
    PassToCore(std::move(*event));
    if (from_coordinator) session_.ReadMore();
  } else if (auto* arrived = std::get_if<ValuesArrived>(&item)) {
    CountValues(*arrived);
  } else {
    std::get<Command>(item)(*this);
  }
}

void SimulatedHost::PassToCore(agent::Event event) {
  pending_events_.push_back(std::move(event));
  while (!pending_events_.empty()) {
    agent::Event next = std::move(pending_events_.front());
    pending_events_.pop_front();
    for (agent::Effect& effect : core_.Handle(std::move(next), now_)) {
      std::visit([this](auto& what) { Do(what); }, effect);
    }
  }
}

SimulatedHost::Trainer* SimulatedHost::Find(agent::LinkId link) {
  for (auto& [id, trainer] : trainers_) {
    if (trainer.link == link) return &trainer;
  }
  return nullptr;
}

void SimulatedHost::ReportFact(Trainer& trainer, v1::Fact fact) {
  fact.set_sequence(++trainer.last_fact);
  PassToCore(agent::LinkFact{trainer.link, std::move(fact)});
}

void SimulatedHost::PutValue(const Trainer& trainer) {
  // About the size of an address of gloo.
  constexpr size_t kValueBytes = 64;
  v1::AgentMessage message;
  v1::PutValues& put = *message.mutable_put();
  put.set_job_id(trainer.desired.key().job_id());
  put.set_generation(trainer.desired.key().generation());
  v1::StoreValue& value = *put.add_values();
  value.set_name(absl::StrCat("rank-", trainer.desired.key().rank()));
  value.set_value(std::string(kValueBytes, 'v'));
  session_.Send(std::move(message));
}

void SimulatedHost::CountValues(const ValuesArrived& arrived) {
  for (auto& [id, trainer] : trainers_) {
    if (agent::GroupOf(id) != arrived.group || trainer.ended) continue;
    uint32_t all = trainer.desired.world_size();
    bool before = trainer.values >= all;
    trainer.values += arrived.count;
    if (before || trainer.values < all) continue;
    v1::Fact fact;
    fact.mutable_ready()->set_first_step(1);
    fact.mutable_ready()->set_parameters(1);
    ReportFact(trainer, std::move(fact));
  }
}

// ---- Effects of the core ----

void SimulatedHost::Do(agent::StartProcess& effect) {
  agent::TrainerId id = agent::FromProto(effect.desired.key());
  Trainer& trainer = trainers_[id];
  trainer.desired = std::move(effect.desired);
  trainer.token = effect.token;
  trainer.link = agent::LinkId(++links_);
  Enqueue(agent::ProcessStarted{id, 1000});
  v1::RegisterTrainer registration;
  *registration.mutable_key() = trainer.desired.key();
  registration.set_token(trainer.token);
  registration.set_pid(1000);
  Enqueue(agent::LinkOpened{trainer.link, std::move(registration)});
}

void SimulatedHost::Do(agent::SendLinkMessage& effect) {
  Trainer* trainer = Find(effect.link);
  if (trainer == nullptr) return;
  if (effect.message.has_start()) {
    v1::Fact fact;
    fact.mutable_registered()->set_spec_digest(effect.message.start().trainer().spec_digest());
    fact.set_sequence(++trainer->last_fact);
    Enqueue(agent::LinkFact{trainer->link, std::move(fact)});
    PutValue(*trainer);
  } else if (effect.message.has_go()) {
    options_.reached(Milestone::kGoReceived, 1);
  } else if (effect.message.has_ack()) {
    uint64_t sequence = effect.message.ack().sequence();
    if (flood_window_ > 0) options_.reached(Milestone::kFactDurable, sequence - trainer->acknowledged);
    trainer->acknowledged = sequence;
    ContinueFlood(*trainer);
  } else if (effect.message.has_abort() && !trainer->ended) {
    options_.reached(Milestone::kTrainerAborted, 1);
    trainer->exits_at = now_ + kAbortDuration;
  }
}

void SimulatedHost::EndAborted() {
  for (auto& [id, trainer] : trainers_) {
    if (trainer.ended || trainer.exits_at > now_) continue;
    v1::TrainerExited exited;
    exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
    exited.set_code(kExitAborted);
    EndTrainer(id, trainer, std::move(exited));
  }
}

absl::Time SimulatedHost::next_wake() const {
  absl::Time next = core_.NextWake();
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.ended) next = std::min(next, trainer.exits_at);
  }
  return next;
}

void SimulatedHost::Do(agent::CloseLink& effect) {
  if (Trainer* trainer = Find(effect.link)) trainer->link = agent::LinkId();
}

void SimulatedHost::Do(agent::SignalProcess& effect) {
  auto at = trainers_.find(effect.id);
  if (at == trainers_.end() || at->second.ended) return;
  options_.reached(Milestone::kTrainerAborted, 1);
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  exited.set_signal(effect.signal);
  EndTrainer(effect.id, at->second, std::move(exited));
}

void SimulatedHost::Do(agent::MarkReported& effect) {
  options_.reached(Milestone::kExitDurable, 1);
  trainers_.erase(effect.id);
}

void SimulatedHost::Do(agent::Leave&) {
  options_.reached(Milestone::kDaemonLeft, 1);
  left_ = true;
  session_.HangUp("the daemon leaves");
}

// ---- Commands of the bench ----

void SimulatedHost::EndTrainer(const agent::TrainerId& id, Trainer& trainer, v1::TrainerExited exited) {
  trainer.ended = true;
  Enqueue(agent::LinkClosed{trainer.link});
  Enqueue(agent::ProcessEnded{id, std::move(exited)});
}

void SimulatedHost::FinishTrainers() {
  for (auto& [id, trainer] : trainers_) {
    if (trainer.ended) continue;
    if (id.rank == 0) {
      v1::RankReport report;
      report.set_phase("train");
      report.set_last_step(1);
      v1::StepReport& step = *report.add_steps();
      step.set_step(1);
      step.set_loss(1.0);
      step.set_tokens(1);
      step.set_step_s(1e-3);
      Enqueue(agent::LinkReport{trainer.link, std::move(report)});
      v1::Fact saved;  // the job does not succeed without it
      saved.mutable_saved()->set_step(1);
      saved.mutable_saved()->set_path("/runs/step-00000001");
      saved.mutable_saved()->set_manifest_hash("0");
      saved.set_sequence(++trainer.last_fact);
      Enqueue(agent::LinkFact{trainer.link, std::move(saved)});
    }
    v1::Fact fact;
    fact.mutable_finished()->set_step(1);
    fact.set_sequence(++trainer.last_fact);
    Enqueue(agent::LinkFact{trainer.link, std::move(fact)});
    v1::TrainerExited exited;
    exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
    EndTrainer(id, trainer, std::move(exited));
  }
  PassToCore(agent::Tick{});
}

void SimulatedHost::KillTrainer() {
  for (auto& [id, trainer] : trainers_) {
    if (trainer.ended) continue;
    v1::TrainerExited exited;
    exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
    exited.set_signal(SIGKILL);
    EndTrainer(id, trainer, std::move(exited));
  }
  PassToCore(agent::Tick{});
}

void SimulatedHost::Flood(uint64_t window) {
  flood_window_ = window;
  for (auto& [id, trainer] : trainers_) ContinueFlood(trainer);
  PassToCore(agent::Tick{});
}

// Each fact changes the restore point of its rank, so the coordinator has to store every one.
void SimulatedHost::ContinueFlood(Trainer& trainer) {
  if (trainer.ended || trainer.last_fact - trainer.acknowledged > flood_window_ / 2) return;
  while (trainer.last_fact - trainer.acknowledged < flood_window_) {
    v1::Fact fact;
    fact.mutable_restored()->set_step(trainer.last_fact);
    fact.mutable_restored()->set_path("/bench/step");
    fact.set_sequence(++trainer.last_fact);
    Enqueue(agent::LinkFact{trainer.link, std::move(fact)});
  }
}

}  // namespace trainyard::bench
