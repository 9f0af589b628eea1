#include "tests/sim/trainer.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/recovery.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kReportInterval = absl::Milliseconds(500);
// The longest time for which a rank that did not finish delays its exit until its daemon has received its last facts
// and reports. The same constant as in worker/trainer/main.cc.
constexpr absl::Duration kCloseLimit = absl::Seconds(5);
// The same for a rank that has finished: without its last fact, its group would be restarted. The same constant as in
// worker/trainer/run.cc.
constexpr absl::Duration kDoneWait = absl::Minutes(10);

}  // namespace

Trainer::Trainer(World& world, Machine& machine, const TrainerId& id, std::string token, int64_t pid,
                 uint32_t world_size)
    : RankProcess(world, machine, id, pid),
      token_(std::move(token)),
      world_size_(world_size),
      group_(world.GroupFor(agent::GroupOf(id), world_size)),
      phase_since_(world.engine.now()) {}

void Trainer::Boot() {
  group_->Enter(this);
  world_.engine.After(world_.random.Between(absl::Milliseconds(5), absl::Milliseconds(60)),
                      [self = shared_from_this()] { self->Do([self] { self->Connect(); }); });
}

// ---- the trainer's daemon ----

void Trainer::Connect() {
  if (ended_ || pipe_ != nullptr) return;
  if (!machine_.daemon().alive()) {
    world_.engine.After(world_.random.Between(absl::Milliseconds(50), absl::Seconds(1)),
                        [self = shared_from_this()] { self->Do([self] { self->Connect(); }); });
    return;
  }
  v1::RegisterTrainer registration;
  *registration.mutable_key() = agent::ToProto(id_);
  registration.set_token(token_);
  registration.set_pid(pid_);
  registration.set_reconnect(order_.has_value());
  pipe_ = machine_.daemon().Connect(registration);
  steps_sent_ = evals_sent_ = 0;
  if (order_.has_value()) {
    if (stage_ == Stage::kJoining) machine_.daemon().PutValue(id_, absl::StrCat(machine_.name(), ":", pid_));
    SendReport();
    for (const v1::Fact& fact : facts_) SendFact(fact);
  }
}

void Trainer::PipeEnded(const PipePtr& pipe, const absl::Status& status) {
  if (ended_ || pipe != pipe_) return;
  pipe_ = nullptr;
  bool over = absl::IsAborted(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status);
  if (over) return Do([self = shared_from_this()] { self->Exit(kExitAborted); });
  world_.engine.After(world_.random.Between(absl::Milliseconds(50), absl::Milliseconds(600)),
                      [self = shared_from_this()] { self->Do([self] { self->Connect(); }); });
}

void Trainer::HandleMessage(const PipePtr& pipe, const v1::LinkMessage& message) {
  if (pipe != pipe_) return;
  Do([self = shared_from_this(), message] {
    if (message.has_start() && !self->order_.has_value()) self->Register(message.start().trainer());
    if (message.has_ack()) self->Acknowledged(message.ack().sequence());
    if (message.has_stop() && message.stop().request() > self->stop_request_) {
      self->stop_ = true;
      self->stop_request_ = message.stop().request();
    }
    if (message.has_stop()) self->stop_needs_save_ = message.stop().needs_save();
    if (message.has_grants()) self->HandleGrants(message.grants());
    if (message.has_save() && message.save().request() > self->save_request_) {
      self->save_request_ = message.save().request();
      self->group_->RequestSave();
    }
    if (message.has_abort()) return self->Exit(kExitAborted);
    if (message.has_go() && !self->go_) {
      self->go_ = true;
      self->SetPhase("first_step");
      self->group_->Go();
    }
  });
}

void Trainer::Acknowledged(uint64_t sequence) {
  while (!facts_.empty() && facts_.front().sequence() <= sequence) {
    world_.CheckDurable(facts_.front());
    if (facts_.front().has_saved()) {
      world_.storage.Prune(id_.job, writer(), facts_.front().saved().step(), /*keep=*/2);
    }
    facts_.pop_front();
  }
}

uint64_t Trainer::ReportFact(v1::Fact fact) {
  *fact.mutable_key() = agent::ToProto(id_);
  fact.set_sequence(++last_fact_);
  fact.set_time_unix_ms(absl::ToUnixMillis(world_.LocalTime(machine_)));
  facts_.push_back(fact);
  SendReport();
  SendFact(fact);
  return last_fact_;
}

void Trainer::SendFact(const v1::Fact& fact) {
  if (pipe_ == nullptr) return;
  pipe_->up->Send(absl::Microseconds(200), [&daemon = machine_.daemon(), pipe = pipe_, fact] {
    daemon.Post(pipe->incarnation, agent::LinkFact{pipe->link, fact});
  });
}

void Trainer::SendReport() {
  if (pipe_ == nullptr) return;
  v1::RankReport report;
  *report.mutable_key() = agent::ToProto(id_);
  report.set_phase(phase_);
  report.set_last_step(last_step_);
  report.set_phase_s(absl::ToDoubleSeconds(world_.engine.now() - phase_since_));
  for (auto& [phase, seconds] : std::exchange(phase_times_, {})) {
    v1::PhaseTime& time = *report.add_phase_times();
    time.set_phase(phase);
    time.set_longest_s(seconds);
  }
  report.set_steps_made(last_step_ >= first_step_ ? last_step_ - first_step_ + 1 : 0);
  FillPosition(report);
  for (; steps_sent_ < steps_.size(); ++steps_sent_) *report.add_steps() = steps_[steps_sent_];
  for (; evals_sent_ < evals_.size(); ++evals_sent_) *report.add_evals() = evals_[evals_sent_];
  pipe_->up->Send(absl::Microseconds(200), [&daemon = machine_.daemon(), pipe = pipe_, report] {
    daemon.Post(pipe->incarnation, agent::LinkReport{pipe->link, report});
  });
}

// The rank either computes or waits for the others in the all-reduce of the step. Only rank 0 has work of its own after
// the last step: when the parts of the last save have ended, rank 0 assembles and names the save and waits for no rank.
void Trainer::FillPosition(v1::RankReport& report) {
  report.set_compute_total_s(world_.mutation == Mutation::kForgeWork && id_.rank == 0 ? 2 * compute_s_ : compute_s_);
  report.set_micro_batches_made(2 * report.steps_made());
  const bool names = id_.rank == 0 && (phase_ == "leaving" || (phase_ == "save" && !group_->WritesParts()));
  const bool waits = go_ && stage_ != Stage::kEnding && !group_->IsComputing(*this) && !names;
  v1::CommunicatorReport& communicator = *report.add_communicators();
  communicator.set_name("world");
  communicator.set_started(last_step_ + (waits ? 1 : 0));
  communicator.set_completed(last_step_);
  communicator.set_last_started(absl::StrCat("all-reduce ", communicator.started()));
  if (waits) communicator.set_waits_in(communicator.last_started());
  group_->Report(*this, report);
}

void Trainer::ReportPeriodically() {
  Do([self = shared_from_this()] {
    self->SendReport();
    self->world_.engine.After(kReportInterval, [self] { self->ReportPeriodically(); });
  });
}

// ---- forming ----

void Trainer::Register(const v1::DesiredTrainer& order) {
  order_ = order;
  stage_ = Stage::kJoining;
  SetPhase("joining");
  ReportPeriodically();
  v1::Fact fact;
  fact.mutable_registered()->set_spec_digest(order.spec_digest());
  ReportFact(std::move(fact));
  machine_.daemon().PutValue(id_, absl::StrCat(machine_.name(), ":", pid_));
  JoinWhenPossible();
}

void Trainer::JoinWhenPossible() {
  if (stage_ != Stage::kJoining || !machine_.daemon().HasValues(agent::GroupOf(id_), world_size_)) return;
  stage_ = Stage::kRendezvous;
  world_.engine.After(world_.random.Between(absl::Milliseconds(20), absl::Milliseconds(150)),
                      [self = shared_from_this()] { self->Do([self] { self->Rendezvous(); }); });
}

void Trainer::Rendezvous() {
  // The other ranks wait until rank 0 has chosen the checkpoint.
  const bool can_continue = group_->IsComplete() && group_->Connected() && (id_.rank == 0 || group_->chosen());
  if (can_continue) return id_.rank == 0 ? ClaimFolder(0) : BeReady();
  world_.engine.After(absl::Milliseconds(200),
                      [self = shared_from_this()] { self->Do([self] { self->Rendezvous(); }); });
}

void Trainer::BeReady() {
  first_step_ = group_->first_step();
  last_step_ = first_step_ - 1;
  stage_ = Stage::kReady;
  SetPhase("ready");
  world_.judge.Truth(pid_).ready = true;
  v1::Fact fact;
  fact.mutable_ready()->set_first_step(first_step_);
  ReportFact(std::move(fact));
}

// ---- stepping ----

void Trainer::SetPhase(const std::string& phase) {
  if (phase_ == phase) return;
  double took = absl::ToDoubleSeconds(world_.engine.now() - phase_since_);
  if (phase_ == "save" || phase_ == "first_step") phase_times_[phase_] = std::max(phase_times_[phase_], took);
  phase_ = phase;
  phase_since_ = world_.engine.now();
  if (order_.has_value()) SendReport();
}

void Trainer::StepMade(uint64_t step, absl::Duration took, absl::Duration computed) {
  last_step_ = step;
  compute_s_ += absl::ToDoubleSeconds(computed);
  if (phase_ == "train") {
    double seconds = absl::ToDoubleSeconds(world_.engine.now() - phase_since_);
    phase_times_["train"] = std::max(phase_times_["train"], seconds);
    phase_since_ = world_.engine.now();
  }
  SetPhase("train");
  if (id_.rank != 0) return;
  if (!world_.storage.IsFenced(id_.job, writer())) world_.storage.RecordStep(id_.job);
  v1::StepReport& report = steps_.emplace_back();
  report.set_step(step);
  report.set_loss(10.0 / static_cast<double>(step));
  report.set_tokens(64);
  report.set_step_s(absl::ToDoubleSeconds(took));
  report.set_compute_s(absl::ToDoubleSeconds(computed));
  report.set_lr(static_cast<double>(id_.generation.value()));  // Judge::CheckEvent reads the generation here
  SendReport();
}

void Trainer::Evaluated(uint64_t step) {
  v1::EvalReport& report = evals_.emplace_back();
  report.set_step(step);
  report.set_loss(1);
  report.set_tokens(64);
  report.set_seconds(0.1);
  SendReport();
}

void Trainer::PeerDisconnected(uint64_t step) {
  Do([self = shared_from_this(), step] {
    if (self->stage_ == Stage::kEnding) return;
    v1::Fact fact;
    fact.mutable_broken()->set_step(step);
    fact.mutable_broken()->set_message("connection closed by peer");
    self->ReportFact(std::move(fact));
    self->CloseThen(kExitAborted);
  });
}

void Trainer::Finish(uint64_t step, bool stopped, const std::string& unsaved) {
  world_.judge.Truth(pid_).finished = true;
  if (!unsaved.empty()) world_.judge.NoteHarm(agent::GroupOf(id_), "its last save failed permanently");
  v1::Fact fact;
  fact.mutable_finished()->set_step(step);
  fact.mutable_finished()->set_stopped(stopped);
  fact.mutable_finished()->set_unsaved(unsaved);
  ReportFact(std::move(fact));
  CloseThen(kExitDone);
}

// ---- the trainer's end ----

void Trainer::CloseThen(int code) {
  stage_ = Stage::kEnding;
  SetPhase("ended");
  ExitWhenClosed(code, world_.engine.now() + (code == 0 ? kDoneWait : kCloseLimit));
}

void Trainer::ExitWhenClosed(int code, absl::Time give_up) {
  Do([self = shared_from_this(), code, give_up] {
    bool all_sent = self->pipe_ != nullptr && self->steps_sent_ == self->steps_.size();
    bool closed = self->facts_.empty() && all_sent;
    if (!closed && (self->leave_ || self->world_.engine.now() >= give_up)) {
      self->world_.judge.NoteHarm(agent::GroupOf(self->id_), "a rank exited before its last reports were acknowledged");
      closed = true;
    }
    if (closed) return self->Exit(code);
    self->world_.engine.After(absl::Milliseconds(20), [self, code, give_up] { self->ExitWhenClosed(code, give_up); });
  });
}

void Trainer::Exit(int code) {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exited.set_code(code);
  End(std::move(exited));
}

void Trainer::Signal(int signal) {
  if (signal == SIGTERM) return Do([self = shared_from_this()] { self->Leave(); });
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  exited.set_signal(signal);
  exited.add_last_lines("the last line");
  End(std::move(exited));
}

// After a SIGTERM the trainer ends together with all other ranks after the current step, or at once if the steps have
// not begun.
void Trainer::Leave() {
  leave_ = true;
  if (stage_ == Stage::kEnding) return;  // ExitWhenClosed checks leave_
  if (!go_) return Exit(1);
  group_->RequestLeave();
}

void Trainer::End(v1::TrainerExited exited) {
  if (ended_) return;
  auto self = shared_from_this();
  SetEnded();
  world_.judge.Trace(absl::StrCat(machine_.name(), ": ", agent::Describe(id_), " ends, code ", exited.code(),
                                  " signal ", exited.signal()));
  if (pipe_ != nullptr) {
    pipe_->up->Send(absl::Microseconds(300), [&daemon = machine_.daemon(), pipe = pipe_] {
      daemon.Post(pipe->incarnation, agent::LinkClosed{pipe->link});
    });
  }
  // Reports that the trainer had not sent are lost.
  if (pipe_ == nullptr ? !steps_.empty() : steps_sent_ < steps_.size()) world_.judge.NoteLostReports(id_.job);
  pipe_ = nullptr;
  group_->Leave(this, stage_ == Stage::kEnding);
  machine_.Ended(id_, exited);
}

void Trainer::Disconnect() {
  SetEnded();
  pipe_ = nullptr;
  group_->Leave(this, false);
}

void Trainer::Slow(double times, absl::Duration lasts) {
  if (ended_) return;
  world_.judge.Trace(absl::StrCat(machine_.name(), ": ", agent::Describe(id_), " computes ", times, " times as long"));
  world_.judge.NoteSlow(id_);
  slowness_ = times;
  world_.engine.After(lasts, [self = shared_from_this()] { self->slowness_ = 1; });
}

void Trainer::Freeze() {
  if (ended_) return;
  RankProcess::Freeze();
  world_.judge.NoteFaulty(id_);
}

}  // namespace trainyard::sim
