// The core's communication with trainers: their processes, and the messages on their links.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

// How long an exit waits for the end of the link, whose last messages may still be in the socket.
constexpr absl::Duration kLinkEndWait = absl::Milliseconds(250);

std::string DescribeExit(const v1::TrainerExited& exited) {
  std::string detail = exited.message().empty() ? "" : absl::StrCat(": ", exited.message());
  switch (exited.cause()) {
    case v1::TrainerExited::CAUSE_EXIT:
      return absl::StrCat("exited with code ", exited.code(), detail);
    case v1::TrainerExited::CAUSE_SIGNAL:
      return absl::StrCat("was killed by signal ", exited.signal(), detail);
    case v1::TrainerExited::CAUSE_START_FAILED:
      return absl::StrCat("could not be started", detail);
    case v1::TrainerExited::CAUSE_STOPPED:
      return absl::StrCat("was ended", detail);
    default:
      return absl::StrCat("is lost", detail);
  }
}

// The kinds of facts that a trainer may report; the others are the daemon's own.
bool IsTrainersFact(const v1::Fact& fact) {
  switch (fact.kind_case()) {
    case v1::Fact::kRegistered:
    case v1::Fact::kReady:
    case v1::Fact::kSaveReady:
    case v1::Fact::kSaved:
    case v1::Fact::kSaveFailed:
    case v1::Fact::kBroken:
    case v1::Fact::kFinished:
    case v1::Fact::kRefused:
    case v1::Fact::kRestored:
    case v1::Fact::kProbe:
    case v1::Fact::kDecided:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Core::Admit(Trainer& trainer) {
  groups_.insert(GroupOf(trainer.id));
  Emit(AdmitTrainer{trainer.id, trainer.token});
}

void Core::Signal(Trainer& trainer, int signal) {
  if (signal == SIGKILL) trainer.killed = true;
  if (!IsStarted(trainer)) {
    trainer.awaits_master = false;
    trainer.awaits_check = false;
    v1::TrainerExited exited;
    exited.set_cause(v1::TrainerExited::CAUSE_STOPPED);
    exited.set_message("it had not started yet");
    return On(ProcessEnded{trainer.id, std::move(exited)});
  }
  Emit(SignalProcess{trainer.id, signal});
}

Core::Trainer* Core::FindByLink(LinkId link) {
  auto at = links_.find(link);
  return at == links_.end() ? nullptr : &trainers_.at(at->second);
}

// ---- Processes ----

void Core::On(ProcessFound event) {
  auto [at, is_new] = trainers_.try_emplace(event.id);
  if (!is_new) return;
  Trainer& trainer = at->second;
  trainer.id = event.id;
  trainer.token = std::move(event.token);
  trainer.pid = event.pid;
  trainer.command_grace = event.command_grace;
  trainer.memory_limit = event.memory_limit;
  trainer.cpus = std::move(event.cpus);
  trainer.stopped_before = event.stopped;
  if (event.reported) {
    trainer.process = Process::kEnded;
    trainer.exit_in_outbox = true;
    trainer.exit_reported = true;
    return;
  }
  trainer.process = event.pid != 0 ? Process::kRunning : Process::kStarting;
  const Outbox::KnownNumbers numbers = outbox_.KnownNumbersOf(event.id);
  trainer.last_fact = numbers.last;
  trainer.last_fact_durable = numbers.durable;
  trainer.counted = true;
  ++counts_.adopted;
  trainer.exit_in_outbox = numbers.exit_reported;
  Admit(trainer);
  LogInfo(absl::StrCat("found ", Describe(event.id), " of an earlier incarnation of this daemon"));
  if (event.pid == 0 || numbers.exit_reported) return;
  v1::Fact fact;
  fact.mutable_started()->set_pid(event.pid);
  AddFact(trainer, std::move(fact), {.trainer = trainer.id});
}

void Core::On(AllFound) {
  outbox_.ForgetOtherTrainers([this](const TrainerId& id) { return trainers_.contains(id); });
  dial_at_ = now_;
}

void Core::On(MasterKnown event) {
  auto at = trainers_.find(event.id);
  if (at == trainers_.end() || !at->second.awaits_master) return;
  Trainer& trainer = at->second;
  trainer.awaits_master = false;
  if (event.address.ok()) {
    return Emit(StartProcess{*trainer.desired, trainer.desired->threads(), trainer.token, *std::move(event.address),
                             trainer.cpus});
  }
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  exited.set_message(absl::StrCat("the address of rank 0 is not known: ", event.address.status().message()));
  On(ProcessEnded{event.id, std::move(exited)});
}

void Core::On(ProcessStarted event) {
  auto at = trainers_.find(event.id);
  if (at == trainers_.end() || at->second.process != Process::kStarting) return;
  Trainer& trainer = at->second;
  trainer.process = Process::kRunning;
  trainer.pid = event.pid;
  v1::Fact fact;
  fact.mutable_started()->set_pid(event.pid);
  AddFact(trainer, std::move(fact), {.trainer = trainer.id});
}

void Core::On(ProcessEnded event) {
  if (event.id.rank == kCheckRank) return CheckEnded(event);
  auto at = trainers_.find(event.id);
  if (at == trainers_.end() || at->second.process == Process::kEnded) return;
  Trainer& trainer = at->second;
  trainer.process = Process::kEnded;
  trainer.ended_at = now_;
  // A trainer that was stopped before it was started has not run.
  if (trainer.counted) ++counts_.exits;
  // A trainer may have ended on its own before the signal reached it; then the recorded cause is the true one.
  bool left_on_request = trainer.asked_to_abort && event.exited.cause() == v1::TrainerExited::CAUSE_EXIT &&
                         event.exited.code() == kExitAborted;
  // A command may exit with any code when it receives SIGTERM.
  if (trainer.command_grace.has_value()) left_on_request = trainer.asked_to_abort || trainer.stopped_before;
  bool by_daemon = left_on_request || (trainer.killed && event.exited.cause() == v1::TrainerExited::CAUSE_SIGNAL &&
                                       event.exited.signal() == SIGKILL);
  if (by_daemon) {
    event.exited.set_cause(v1::TrainerExited::CAUSE_STOPPED);
    event.exited.set_message("ended by the daemon: no longer wanted");
  }
  const bool was_killed = event.exited.cause() == v1::TrainerExited::CAUSE_SIGNAL && event.exited.signal() == SIGKILL;
  if (was_killed && !trainer.over_memory.empty()) event.exited.set_message(trainer.over_memory);
  LogInfo(absl::StrCat(Describe(trainer.id), " ", DescribeExit(event.exited)));
  trainer.exited = std::move(event.exited);
  // Removes the snapshots that the trainer wrote after the last removal.
  if (snapshot_jobs_.has_value() && !snapshot_jobs_->contains(trainer.id.job.value())) {
    Emit(KeepSnapshots{*snapshot_jobs_});
  }
}

// Reports an exit after everything that the trainer reported: when its link has ended, or has had time to end.
void Core::ReportExitWhenDue(Trainer& trainer) {
  if (!trainer.exited.has_value() || trainer.exit_in_outbox) return;
  absl::Time due = trainer.ended_at + kLinkEndWait;
  if (trainer.link != LinkId() && now_ < due) return WakeBy(due);
  trainer.exit_in_outbox = true;
  FlushReports(trainer);
  v1::Fact fact;
  *fact.mutable_exited() = *trainer.exited;
  AddFact(trainer, std::move(fact), {.trainer = trainer.id, .is_exit = true});
}

// ---- Links ----

void Core::On(LinkOpened event) {
  const v1::RegisterTrainer& registration = event.registration;
  TrainerId id = FromProto(registration.key());
  auto at = trainers_.find(id);
  if (at == trainers_.end()) {
    return Emit(
        CloseLink{event.link, absl::NotFoundError(absl::StrCat("this host has no trainer for ", Describe(id)))});
  }
  Trainer& trainer = at->second;
  if (registration.token().empty() || trainer.token != registration.token()) {
    return Emit(
        CloseLink{event.link, absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Describe(id)))});
  }
  // A command that was asked to end may still report the checkpoint that it makes in its grace period, even if it has
  // reported nothing before.
  const bool may_report = trainer.wanted || trainer.command_grace.has_value();
  if (!may_report || trainer.killed || trainer.process == Process::kEnded) {
    return Emit(CloseLink{event.link, absl::AbortedError(absl::StrCat(Describe(id), " is over"))});
  }
  // A child of a command inherits the token. It must not replace the process that reports already.
  if (trainer.command_grace.has_value() && trainer.link != LinkId() && trainer.link_pid != registration.pid()) {
    return Emit(CloseLink{event.link, absl::AlreadyExistsError(absl::StrCat("process ", trainer.link_pid,
                                                                            " already reports for ", Describe(id)))});
  }
  trainer.link_pid = registration.pid();
  if (trainer.link != LinkId()) {
    links_.erase(trainer.link);
    Emit(CloseLink{trainer.link, absl::CancelledError("a newer connection of this trainer has replaced this one")});
  }
  trainer.link = event.link;
  trainer.last_message_at = now_;
  trainer.has_spec = registration.reconnect();
  trainer.go_sent = false;
  trainer.stop_sent = 0;
  trainer.save_sent = 0;
  trainer.grants_sent.clear();
  links_[event.link] = id;
  if (trainer.last_fact_durable > 0) {
    v1::LinkMessage message;
    message.mutable_ack()->set_sequence(trainer.last_fact_durable);
    Emit(SendLinkMessage{trainer.link, std::move(message)});
  }
  SendToTrainer(trainer);
}

// Sends what the trainer should know and was not sent on this link yet.
void Core::SendToTrainer(Trainer& trainer) {
  if (trainer.link == LinkId() || !trainer.desired.has_value()) return;
  v1::LinkMessage message;
  if (!trainer.has_spec) {
    trainer.has_spec = true;
    v1::StartTrainer* start = message.mutable_start();
    *start->mutable_trainer() = *trainer.desired;
    start->set_host(options_.host);
    start->set_cores(options_.inventory.cores());
    Emit(SendLinkMessage{trainer.link, message});
  }
  if (trainer.desired->go() && !trainer.go_sent) {
    trainer.go_sent = true;
    message.mutable_go();
    Emit(SendLinkMessage{trainer.link, message});
  }
  // A coordinator that does not number its stop requests makes one per generation.
  const uint64_t stop = trainer.desired->stop() ? std::max<uint64_t>(trainer.desired->stop_request(), 1) : 0;
  if (stop > trainer.stop_sent) {
    trainer.stop_sent = stop;
    message.mutable_stop()->set_request(stop);
    message.mutable_stop()->set_needs_save(trainer.desired->stop_needs_save());
    Emit(SendLinkMessage{trainer.link, message});
  }
  SendSavesToTrainer(trainer);
}

void Core::SendSavesToTrainer(Trainer& trainer) {
  v1::LinkMessage message;
  if (trainer.desired->save_requests() > trainer.save_sent) {
    trainer.save_sent = trainer.desired->save_requests();
    message.mutable_save()->set_request(trainer.save_sent);
    Emit(SendLinkMessage{trainer.link, message});
  }
  *message.mutable_grants()->mutable_grants() = trainer.desired->grants();
  std::string grants = message.grants().SerializeAsString();
  if (grants == trainer.grants_sent) return;
  trainer.grants_sent = std::move(grants);
  Emit(SendLinkMessage{trainer.link, std::move(message)});
}

void Core::On(LinkFact event) {
  Trainer* trainer = FindByLink(event.link);
  if (trainer == nullptr || !IsTrainersFact(event.fact)) return;
  // The program of a command reports only its progress; how it has ended is known from its exit.
  if (trainer->command_grace.has_value()) return;
  uint64_t sequence = event.fact.sequence();
  if (sequence <= trainer->last_fact) {
    // The trainer repeats a fact from before its link broke. If the fact is durable already, its acknowledgement was
    // lost with that link.
    if (sequence > trainer->last_fact_durable) return;
    v1::LinkMessage message;
    message.mutable_ack()->set_sequence(trainer->last_fact_durable);
    return Emit(SendLinkMessage{event.link, std::move(message)});
  }
  if (outbox_.full()) {
    // The trainer keeps facts without acknowledgement and sends them again on its next link.
    links_.erase(event.link);
    trainer->link = LinkId();
    return Emit(CloseLink{
        event.link, absl::UnavailableError("the daemon's outbox is full: too many facts wait for the coordinator")});
  }
  trainer->last_fact = sequence;
  if (event.fact.has_ready()) trainer->ready = true;
  FlushReports(*trainer);
  AddFact(*trainer, std::move(event.fact), {.trainer = trainer->id, .trainer_sequence = sequence});
}

void Core::On(LinkReport event) {
  Trainer* trainer = FindByLink(event.link);
  if (trainer == nullptr) return;
  trainer->last_message_at = now_;
  *event.report.mutable_key() = ToProto(trainer->id);
  // An adopted trainer has reported to an earlier incarnation of the daemon that it is ready.
  if (event.report.last_step() > 0 || !event.report.steps().empty()) trainer->ready = true;
  trainer->reports.Add(event.report, now_);
}

void Core::On(LinkClosed event) {
  Trainer* trainer = FindByLink(event.link);
  links_.erase(event.link);
  if (trainer != nullptr) trainer->link = LinkId();
}

void Core::On(LogsEnded event) {
  // The request stays in `log_requests_` until the coordinator withdraws it, so that it is served only once.
  Emit(ForgetLogs{event.request_id});
}

}  // namespace trainyard::agent
