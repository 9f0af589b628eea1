#include "worker/trainer/grpc_link.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/limits.h"
#include "common/rpc_status.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "trainyard/v1/trainer.grpc.pb.h"
#include "worker/trainer/link_messages.h"
#include "worker/trainer/outbox.h"
#include "worker/trainer/phase_clock.h"
#include "worker/trainer/value_calls.h"

namespace trainyard {
namespace {

// Reports are gathered for so long: a watcher does not see the difference, the step loop does.
constexpr absl::Duration kReportInterval = absl::Milliseconds(100);
// A rank is heard of this often even when it has nothing new.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(500);
// Between two attempts to reach a daemon that is being replaced: the socket is on this host, and while nobody hears
// this rank nobody can tell that it is well.
constexpr absl::Duration kReconnectMax = absl::Milliseconds(250);
// A daemon that is alive ends the stream at once when we do; another is not waited for longer.
constexpr absl::Duration kPoliteEnd = absl::Seconds(1);

using Stream = grpc::ClientReaderWriter<v1::TrainerMessage, v1::LinkMessage>;

// The daemon has said that this process is not to go on.
bool IsFinal(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsAborted(status);
}

class GrpcLink final : public Link {
 public:
  explicit GrpcLink(const GrpcLinkOptions& options);
  ~GrpcLink() override { Close(absl::ZeroDuration()); }

  absl::StatusOr<StartOrder> AwaitStart(absl::Duration limit) override;
  uint64_t Tell(const TrainerFact& fact) override;
  uint64_t acknowledged() const override;
  bool AwaitAcknowledged(uint64_t sequence, absl::Duration limit) override;
  void ReportStep(const StepRecord& record) override;
  void ReportEval(const EvalRecord& record) override;
  void ReportProgress(Phase phase, uint64_t last_step) override;
  void ReportWork(const WorkTotals& totals) override;
  void PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) override;
  absl::Status AwaitGo(const std::function<bool()>& interrupted) override;
  uint64_t stop_request() const override;
  void OnAbort(std::function<void(std::string)> callback) override;
  absl::Status abort_status() const override;
  void Close(absl::Duration limit) override;
  absl::Status Put(absl::string_view name, absl::string_view value) override { return values_.Put(name, value); }
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override {
    return values_.Get(name, timeout);
  }

 private:
  // The reading thread.
  void ConnectForever();
  absl::Status RunStream(bool reconnect);
  void Handle(const v1::LinkMessage& message);
  void AbortWith(std::string reason);

  // The writing thread.
  void WriteForever();
  absl::Time NextWrite() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool TakeMessage(absl::Time now, v1::TrainerMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillStand(v1::RankReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !outbox_.has_facts() && !outbox_.has_reports(); }

  // Returns false when the link was closed or aborted meanwhile.
  bool Pause(absl::Duration duration);

  const GrpcLinkOptions options_;
  const v1::TrainerKey key_;
  const std::unique_ptr<v1::TrainerLink::Stub> stub_;
  ValueCalls values_;

  mutable absl::Mutex mu_;
  Outbox outbox_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<absl::StatusOr<StartOrder>> order_ ABSL_GUARDED_BY(mu_);
  bool go_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t stop_request_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::function<void(std::string)> on_abort_ ABSL_GUARDED_BY(mu_);
  PhaseClock phases_ ABSL_GUARDED_BY(mu_){std::chrono::steady_clock::now()};
  WorkTotals work_ ABSL_GUARDED_BY(mu_);
  std::function<std::vector<CommunicatorProgress>()> poll_ ABSL_GUARDED_BY(mu_);
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;
  bool phase_changed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_report_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // null: none is up
  grpc::ClientContext* stream_context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;   // no reconnecting; the writer ends the stream once all is sent
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // the reading thread is done
  absl::CondVar changed_;

  // One writer at a time on a stream, and none while it is being finished.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  std::thread reader_;
  std::thread writer_;
};

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMin));
  // This one is really how long a connection may take to be made.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMax));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(kReconnectMax));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(limits::kGrpcMessageBytes);
  arguments.SetMaxSendMessageSize(limits::kGrpcMessageBytes);
  return arguments;
}

v1::TrainerKey KeyOf(const GrpcLinkOptions& options) {
  v1::TrainerKey key;
  key.set_job_id(options.job_id);
  key.set_generation(options.generation);
  key.set_rank(options.rank);
  return key;
}

GrpcLink::GrpcLink(const GrpcLinkOptions& options)
    : options_(options),
      key_(KeyOf(options)),
      stub_(v1::TrainerLink::NewStub(grpc::CreateCustomChannel(
          absl::StrCat("unix:", options.socket), grpc::InsecureChannelCredentials(), ChannelArguments()))),
      values_(*stub_, key_, options.token),
      reader_([this] {
        pthread_setname_np(pthread_self(), "link-reader");  // so that an operator can tell who uses the CPU
        ConnectForever();
      }),
      writer_([this] {
        pthread_setname_np(pthread_self(), "link-writer");
        WriteForever();
      }) {}

bool GrpcLink::Pause(absl::Duration duration) {
  absl::Time until = absl::Now() + duration;
  absl::MutexLock lock(&mu_);
  while (!closing_ && aborted_.ok() && absl::Now() < until) changed_.WaitWithDeadline(&mu_, until);
  return !closing_ && aborted_.ok();
}

// ---- reading ----

void GrpcLink::ConnectForever() {
  absl::Duration back_off = limits::kReconnectMin;
  for (bool reconnect = false;; reconnect = true) {
    absl::Time began = absl::Now();
    absl::Status status = RunStream(reconnect);
    if (IsFinal(status)) AbortWith(std::string(status.message()));
    // A stream that lasted was a good one: the next attempt comes soon.
    if (absl::Now() - began > kReconnectMax) back_off = limits::kReconnectMin;
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
    if (reconnect) values_.PutAgain();
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
  // The stream is over, so a write that was under way returns; then nobody else touches it. It is not cancelled: that
  // would hide the status with which the daemon ended it.
  absl::MutexLock no_writer(&write_mu_);
  return FromGrpcStatus(stream->Finish(), absl::StrCat("the daemon at ", options_.socket));
}

void GrpcLink::Handle(const v1::LinkMessage& message) {
  if (message.kind_case() == v1::LinkMessage::kAbort) return AbortWith(message.abort().reason());
  absl::MutexLock lock(&mu_);
  switch (message.kind_case()) {
    case v1::LinkMessage::kStart:
      // Sent again after every reconnect; the first one counts.
      if (order_ == nullptr) order_ = std::make_unique<absl::StatusOr<StartOrder>>(OrderFromMessage(message.start()));
      break;
    case v1::LinkMessage::kGo:
      go_ = true;
      values_.Forget();
      break;
    case v1::LinkMessage::kStop:
      stop_request_ = std::max(stop_request_, message.stop().request());
      break;
    case v1::LinkMessage::kAck:
      outbox_.Acknowledge(message.ack().sequence());
      break;
    default:
      break;
  }
  changed_.SignalAll();
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

void GrpcLink::FillStand(v1::RankReport& report) {
  report.set_phase(PhaseName(phases_.phase()));
  report.set_phase_s(phases_.Seconds(std::chrono::steady_clock::now()));
  report.set_last_step(last_step_);
  AddPhaseTimes(phases_.TakeLongest(), report);
  AddWork(work_, report);
  if (poll_ == nullptr) return;
  for (const CommunicatorProgress& progress : poll_()) *report.add_communicators() = ToMessage(progress);
}

bool GrpcLink::TakeMessage(absl::Time now, v1::TrainerMessage& message) {
  bool progress_due = phase_changed_ || now - last_report_ >= kProgressInterval;
  if (outbox_.has_reports() || progress_due) {
    ReportBatch batch = outbox_.TakeReports();
    v1::RankReport& report = *message.mutable_report();
    *report.mutable_key() = key_;
    FillStand(report);
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
      while (!finished_ && absl::Now() < NextWrite()) changed_.WaitWithDeadline(&mu_, NextWrite());
      if (finished_) return;
      stream = stream_;
    }
    // Sends all there is, reports first, then sleeps again.
    absl::MutexLock writing(&write_mu_);
    while (true) {
      v1::TrainerMessage message;
      bool last = false;
      {
        absl::MutexLock lock(&mu_);
        if (stream_ != stream || stream == nullptr) break;
        if (!TakeMessage(absl::Now(), message)) last = true;
        if (last && !closing_) {
          changed_.SignalAll();  // Close may wait for this
          break;
        }
      }
      if (last) stream->WritesDone();
      if (last || !stream->Write(message)) {
        absl::MutexLock lock(&mu_);
        if (stream_ == stream) stream_ = nullptr;  // the reader opens another
        break;
      }
    }
  }
}

// ---- what the loop calls ----

absl::StatusOr<StartOrder> GrpcLink::AwaitStart(absl::Duration limit) {
  absl::Time until = absl::Now() + limit;
  absl::MutexLock lock(&mu_);
  while (order_ == nullptr && aborted_.ok() && absl::Now() < until) changed_.WaitWithDeadline(&mu_, until);
  if (order_ != nullptr) return *order_;
  RETURN_IF_ERROR(aborted_);
  return absl::DeadlineExceededError(
      absl::StrCat("no daemon has answered at ", options_.socket, " within ", absl::FormatDuration(limit)));
}

uint64_t GrpcLink::Tell(const TrainerFact& fact) {
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
  return outbox_.AddFact(fact, absl::ToUnixMillis(absl::Now()));
}

uint64_t GrpcLink::acknowledged() const {
  absl::MutexLock lock(&mu_);
  return outbox_.acknowledged();
}

bool GrpcLink::AwaitAcknowledged(uint64_t sequence, absl::Duration limit) {
  absl::Time until = absl::Now() + limit;
  absl::MutexLock lock(&mu_);
  while (outbox_.acknowledged() < sequence && aborted_.ok() && absl::Now() < until) {
    changed_.WaitWithDeadline(&mu_, until);
  }
  return outbox_.acknowledged() >= sequence;
}

void GrpcLink::ReportStep(const StepRecord& record) {
  absl::MutexLock lock(&mu_);
  // The writer is woken for the first of a batch only.
  if (!outbox_.has_reports()) changed_.SignalAll();
  outbox_.AddStep(record);
}

void GrpcLink::ReportEval(const EvalRecord& record) {
  absl::MutexLock lock(&mu_);
  if (!outbox_.has_reports()) changed_.SignalAll();
  outbox_.AddEval(record);
}

void GrpcLink::ReportProgress(Phase phase, uint64_t last_step) {
  const PhaseClock::Time now = std::chrono::steady_clock::now();
  absl::MutexLock lock(&mu_);
  last_step_ = last_step;
  bool changed = phase != phases_.phase();
  phases_.Enter(phase, now);
  if (!changed) return;
  phase_changed_ = true;
  changed_.SignalAll();
}

void GrpcLink::ReportWork(const WorkTotals& totals) {
  absl::MutexLock lock(&mu_);
  work_ = totals;
}

void GrpcLink::PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) {
  absl::MutexLock lock(&mu_);
  poll_ = std::move(poll);
}

absl::Status GrpcLink::AwaitGo(const std::function<bool()>& interrupted) {
  absl::MutexLock lock(&mu_);
  while (!go_ && aborted_.ok()) {
    if (interrupted()) return absl::CancelledError("told to leave before the first step");
    changed_.WaitWithTimeout(&mu_, absl::Milliseconds(50));
  }
  return aborted_;
}

uint64_t GrpcLink::stop_request() const {
  absl::MutexLock lock(&mu_);
  return stop_request_;
}

void GrpcLink::OnAbort(std::function<void(std::string)> callback) {
  std::string reason;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) {
      on_abort_ = std::move(callback);
      return;
    }
    reason = std::string(aborted_.message());
  }
  callback(std::move(reason));
}

absl::Status GrpcLink::abort_status() const {
  absl::MutexLock lock(&mu_);
  return aborted_;
}

void GrpcLink::Close(absl::Duration limit) {
  absl::Time until = absl::Now() + limit;
  {
    absl::MutexLock lock(&mu_);
    if (!reader_.joinable()) return;
    while (!Idle() && !finished_ && absl::Now() < until) changed_.WaitWithDeadline(&mu_, until);
    closing_ = true;
    changed_.SignalAll();
    absl::Time polite = absl::Now() + (limit > absl::ZeroDuration() ? kPoliteEnd : absl::ZeroDuration());
    while (!finished_ && absl::Now() < polite) changed_.WaitWithDeadline(&mu_, polite);
    if (stream_context_ != nullptr) stream_context_->TryCancel();
  }
  reader_.join();
  writer_.join();
}

}  // namespace

std::unique_ptr<Link> NewGrpcLink(const GrpcLinkOptions& options) { return std::make_unique<GrpcLink>(options); }

}  // namespace trainyard
