// The two threads of a GrpcLink: one opens the stream to the daemon, reopens it when it breaks, and reads it; the other
// writes what the training loop has reported.
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/rpc_status.h"
#include "common/version.h"
#include "worker/link/grpc_link_impl.h"
#include "worker/link/link_messages.h"

namespace trainyard::grpc_link {
namespace {

// How long reports are collected before they are sent: a user does not notice the delay, but more frequent messages
// would slow down training.
constexpr absl::Duration kReportInterval = absl::Milliseconds(100);
// A rank sends a report this often even if nothing has changed.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(500);
// The maximum number of stored grants and refusals of saves; a coordinator sends fewer in one message.
constexpr size_t kGrantsKept = 64;

// Returns whether the daemon has decided that this process must not continue.
bool IsFinal(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsAborted(status);
}

}  // namespace

bool GrpcLink::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return !changed_.AwaitFor(&mu_, duration,
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closing_ || !aborted_.ok(); });
}

// ---- reading ----

void GrpcLink::ConnectForever() {
  absl::Duration back_off = limits::kReconnectMin;
  for (bool reconnect = false;; reconnect = true) {
    absl::Time began = Now();
    absl::Status status = RunStream(reconnect);
    if (IsFinal(status)) AbortWith(std::string(status.message()));
    // After a stream that lasted for a while, the delays begin with the shortest again.
    if (Now() - began > kReconnectMax) back_off = limits::kReconnectMin;
    if (!Pause(back_off)) break;
    back_off = std::min(back_off * 2, kReconnectMax);
  }
  absl::MutexLock lock(&mu_);
  finished_ = true;
  changed_.SignalAll();
}

absl::Status GrpcLink::RunStream(bool reconnect) {
  grpc::ClientContext context;
  v1::TrainerMessage hello;
  v1::RegisterTrainer& registration = *hello.mutable_register_();
  *registration.mutable_key() = key_;
  registration.set_token(options_.token);
  registration.set_pid(getpid());
  registration.set_version(kVersion);
  {
    absl::MutexLock lock(&mu_);
    registration.set_reconnect(order_ != nullptr);
    stream_context_ = &context;
  }
  std::shared_ptr<Stream> stream = stub_->Connect(&context);
  if (stream->Write(hello)) {
    if (reconnect) values_.RepeatPuts();
    {
      absl::MutexLock lock(&mu_);
      outbox_.Rewind();
      stream_ = stream;
      changed_.SignalAll();
    }
    v1::LinkMessage message;
    while (stream->Read(&message)) Handle(message);
  }
  {
    absl::MutexLock lock(&mu_);
    stream_ = nullptr;
    stream_context_ = nullptr;
    changed_.SignalAll();
  }
  // The stream has ended, so a write that is under way returns; after that no other thread uses the stream. The stream
  // is not cancelled, because that would hide the status with which the daemon ended it.
  absl::MutexLock no_writer(&write_mu_);
  return FromGrpcStatus(stream->Finish(), absl::StrCat("the daemon at ", options_.socket));
}

void GrpcLink::Handle(const v1::LinkMessage& message) {
  if (message.kind_case() == v1::LinkMessage::kAbort) return AbortWith(message.abort().reason());
  absl::MutexLock lock(&mu_);
  switch (message.kind_case()) {
    case v1::LinkMessage::kStart:
      // The daemon sends the order only to a trainer that has none yet; if it comes again, only the first one counts.
      if (order_ == nullptr) order_ = std::make_unique<absl::StatusOr<StartOrder>>(OrderFromMessage(message.start()));
      break;
    case v1::LinkMessage::kGo:
      go_ = true;
      values_.Forget();
      break;
    case v1::LinkMessage::kStop:
      if (message.stop().request() <= stop_request_.number) break;
      stop_request_ = {.number = message.stop().request(), .needs_save = message.stop().needs_save()};
      break;
    case v1::LinkMessage::kSave:
      save_requests_ = std::max(save_requests_, message.save().request());
      break;
    case v1::LinkMessage::kGrants:
      StoreGrants(message.grants());
      break;
    case v1::LinkMessage::kAck:
      outbox_.Acknowledge(message.ack().sequence());
      break;
    default:
      break;
  }
  changed_.SignalAll();
}

void GrpcLink::StoreGrants(const v1::GrantSaves& message) {
  for (const v1::CheckpointGrant& grant : message.grants()) {
    if (grant.generation() != key_.generation()) continue;
    grants_[{grant.step(), grant.manifest_hash()}] =
        grant.refused() ? absl::FailedPreconditionError(grant.reason()) : absl::OkStatus();
  }
  while (grants_.size() > kGrantsKept) grants_.erase(grants_.begin());
}

void GrpcLink::AbortWith(std::string reason) {
  std::function<void(std::string)> callback;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    aborted_ = absl::AbortedError(reason);
    callback = std::move(on_abort_);
    changed_.SignalAll();
  }
  values_.Abort(absl::AbortedError(reason));
  if (callback) callback(std::move(reason));
}

// ---- writing ----

absl::Time GrpcLink::NextWrite() const {
  if (stream_ == nullptr) return absl::InfiniteFuture();
  if (outbox_.has_facts() || phase_changed_ || closing_) return absl::InfinitePast();
  return last_report_ + (outbox_.has_reports() ? kReportInterval : kProgressInterval);
}

void GrpcLink::FillProgress(v1::RankReport& report) {
  report.set_phase(PhaseName(phases_.phase()));
  report.set_phase_s(phases_.Seconds(std::chrono::steady_clock::now()));
  report.set_last_step(last_step_);
  AddPhaseTimes(phases_.TakeLongest(), report);
  AddWork(work_, report);
  for (const MemoryUse& use : memory_) *report.add_memory() = ToMessage(use);
  if (poll_ == nullptr) return;
  for (const CommunicatorProgress& progress : poll_()) *report.add_communicators() = ToMessage(progress);
}

bool GrpcLink::NextMessage(absl::Time now, v1::TrainerMessage& message) {
  bool progress_due = phase_changed_ || now - last_report_ >= kProgressInterval;
  if (outbox_.has_reports() || progress_due) {
    ReportBatch batch = outbox_.TakeReports();
    v1::RankReport& report = *message.mutable_report();
    *report.mutable_key() = key_;
    FillProgress(report);
    report.set_dropped_steps(batch.dropped_steps);
    for (const StepRecord& step : batch.steps) *report.add_steps() = ToMessage(step);
    for (const EvalRecord& eval : batch.evals) *report.add_evals() = ToMessage(eval);
    phase_changed_ = false;
    last_report_ = now;
    return true;
  }
  if (std::optional<NumberedFact> fact = outbox_.TakeFact()) {
    *message.mutable_fact() = ToMessage(fact->fact);
    *message.mutable_fact()->mutable_key() = key_;
    message.mutable_fact()->set_sequence(fact->sequence);
    message.mutable_fact()->set_time_unix_ms(fact->time_unix_ms);
    return true;
  }
  return false;
}

void GrpcLink::WriteForever() {
  while (true) {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mu_);
      for (absl::Time now = Now(); !finished_ && now < NextWrite(); now = Now()) {
        changed_.WaitFor(&mu_, NextWrite() - now);
      }
      if (finished_) return;
      stream = stream_;
    }
    // Sends all stored messages, reports first, then waits again.
    absl::MutexLock writing(&write_mu_);
    while (true) {
      v1::TrainerMessage message;
      bool nothing_left = false;
      {
        absl::MutexLock lock(&mu_);
        if (stream_ != stream || stream == nullptr) break;
        if (!NextMessage(Now(), message)) nothing_left = true;
        if (nothing_left && !closing_) {
          changed_.SignalAll();  // Close may wait for this
          break;
        }
      }
      if (nothing_left) stream->WritesDone();
      if (nothing_left || !stream->Write(message)) {
        absl::MutexLock lock(&mu_);
        if (stream_ == stream) stream_ = nullptr;  // the reading thread opens another
        break;
      }
    }
  }
}

}  // namespace trainyard::grpc_link
