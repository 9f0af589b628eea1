#include "worker/link/grpc_link.h"

#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/rpc_credentials.h"
#include "common/status_macros.h"
#include "worker/link/grpc_link_impl.h"

namespace trainyard {
namespace grpc_link {
namespace {

// How long Close waits for the daemon to answer the end of the stream, which a running daemon does immediately.
constexpr absl::Duration kStreamEndWait = absl::Seconds(1);

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMin));
  // Despite its name, this limits how long connecting may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMax));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(GrpcLink::kReconnectMax));
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

}  // namespace

GrpcLink::GrpcLink(const GrpcLinkOptions& options)
    : options_(options),
      key_(KeyOf(options)),
      stub_(v1::TrainerLink::NewStub(grpc::CreateCustomChannel(GrpcTarget(absl::StrCat("unix:", options.socket)),
                                                               MakeChannelCredentials(), ChannelArguments()))),
      values_(*stub_, key_, options.token),
      reader_([this] {
        pthread_setname_np(pthread_self(), "link-reader");  // lets an operator see which thread uses the CPU
        ConnectForever();
      }),
      writer_([this] {
        pthread_setname_np(pthread_self(), "link-writer");
        WriteForever();
      }) {}

absl::StatusOr<StartOrder> GrpcLink::AwaitStart(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  changed_.AwaitFor(&mu_, limit,
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return order_ != nullptr || !aborted_.ok(); });
  if (order_ != nullptr) return *order_;
  RETURN_IF_ERROR(aborted_);
  return absl::DeadlineExceededError(absl::StrCat("no order to start has come from the daemon at ", options_.socket,
                                                  " within ", absl::FormatDuration(limit),
                                                  "; the daemon, or the coordinator that it needs for that, is away"));
}

uint64_t GrpcLink::ReportFact(const TrainerFact& fact) {
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
  return outbox_.AddFact(fact, absl::ToUnixMillis(absl::Now()));
}

uint64_t GrpcLink::acknowledged() const {
  absl::MutexLock lock(&mu_);
  return outbox_.acknowledged();
}

bool GrpcLink::AwaitAcknowledged(uint64_t sequence, absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  changed_.AwaitFor(&mu_, limit, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return outbox_.acknowledged() >= sequence || !aborted_.ok();
  });
  return outbox_.acknowledged() >= sequence;
}

void GrpcLink::ReportStep(const StepRecord& record) {
  absl::MutexLock lock(&mu_);
  // The writer is woken for the first report of a batch only.
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

void GrpcLink::ReportMemory(const std::vector<MemoryUse>& memory) {
  absl::MutexLock lock(&mu_);
  memory_ = memory;
}

void GrpcLink::PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) {
  absl::MutexLock lock(&mu_);
  poll_ = std::move(poll);
}

absl::Status GrpcLink::AwaitGo(const std::function<bool()>& interrupted) {
  absl::MutexLock lock(&mu_);
  while (!go_ && aborted_.ok()) {
    if (interrupted()) return absl::CancelledError("the rank must leave before the first step");
    changed_.WaitFor(&mu_, absl::Milliseconds(50));
  }
  return aborted_;
}

StopRequest GrpcLink::stop_request() const {
  absl::MutexLock lock(&mu_);
  return stop_request_;
}

absl::Status GrpcLink::AwaitGrant(uint64_t step, absl::string_view manifest_hash, absl::Duration limit) {
  const ReadySave save(step, manifest_hash);
  absl::MutexLock lock(&mu_);
  changed_.AwaitFor(&mu_, limit,
                    [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return grants_.contains(save) || !aborted_.ok(); });
  if (auto answer = grants_.find(save); answer != grants_.end()) return answer->second;
  RETURN_IF_ERROR(aborted_);
  return absl::DeadlineExceededError(absl::StrCat("the coordinator has not answered about the checkpoint of step ",
                                                  step, " for ", absl::FormatDuration(limit)));
}

uint64_t GrpcLink::save_requests() const {
  absl::MutexLock lock(&mu_);
  return save_requests_;
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
  {
    absl::MutexLock lock(&mu_);
    if (!reader_.joinable()) return;
    changed_.AwaitFor(&mu_, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return IsIdle() || finished_; });
    closing_ = true;
    changed_.SignalAll();
    const absl::Duration end_wait = limit > absl::ZeroDuration() ? kStreamEndWait : absl::ZeroDuration();
    changed_.AwaitFor(&mu_, end_wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return finished_; });
    if (stream_context_ != nullptr) stream_context_->TryCancel();
  }
  reader_.join();
  writer_.join();
}

}  // namespace grpc_link

std::unique_ptr<Link> NewGrpcLink(const GrpcLinkOptions& options) {
  return std::make_unique<grpc_link::GrpcLink>(options);
}

}  // namespace trainyard
