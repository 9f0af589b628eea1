#include "coordinator/rpc/agent_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/rpc_answer.h"
#include "coordinator/rpc/attach_stream.h"

namespace trainyard {

namespace {

// No process waits for an acknowledgement, and a newer one replaces older ones. Acknowledgements are sent when no new
// one was added for kAckQuiet, so that they do not delay hosts that form or end a group, and at the latest after
// kAckWait.
constexpr absl::Duration kAckQuiet = absl::Milliseconds(20);
constexpr absl::Duration kAckWait = absl::Milliseconds(100);

// One PushLogs stream. It reads only as fast as the reader of the logs.
class PushLogsStream final : public grpc::ServerReadReactor<v1::LogChunk>,
                             public std::enable_shared_from_this<PushLogsStream> {
 public:
  PushLogsStream(const RpcContext& context, LogBridge& bridge) : context_(context), bridge_(bridge) {}

  void Start() {
    self_ = shared_from_this();
    Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (!cancelled_.load() && !request_id_.empty()) context_.queue->Post(LogPushEnded{request_id_});
      return End(absl::OkStatus());
    }
    if (request_id_.empty()) request_id_ = chunk_.request_id();
    // The next read may begin on another thread before Push returns, so `chunk_` must be empty before.
    v1::LogChunk chunk = std::exchange(chunk_, v1::LogChunk());
    bool keep_reading = true;
    absl::Status status = bridge_.Push(
        request_id_, std::move(chunk), [self = self_] { self->Read(); }, keep_reading);
    if (!status.ok()) return End(status);
    if (keep_reading) Read();
  }
  void OnCancel() override {
    cancelled_.store(true);
    End(absl::CancelledError("cancelled"));
  }
  void OnDone() override {
    context_.Count("PushLogs", code_);
    self_.reset();  // may be the last reference: must come last
  }

 private:
  void Read() {
    absl::MutexLock lock(&mu_);
    if (!finished_) StartRead(&chunk_);
  }
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (std::exchange(finished_, true)) return;
    code_ = status.code();
    Finish(ToGrpcAnswer(status));
  }

  const RpcContext& context_;
  LogBridge& bridge_;
  v1::LogChunk chunk_;
  std::string request_id_;
  std::atomic<bool> cancelled_{false};
  absl::StatusCode code_ = absl::StatusCode::kOk;
  absl::Mutex mu_;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<PushLogsStream> self_;  // set until gRPC is done with it
};

}  // namespace

AgentServiceImpl::AgentServiceImpl(const RpcContext& context, LogBridge& bridge) : context_(context), bridge_(bridge) {}
AgentServiceImpl::~AgentServiceImpl() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AgentServiceImpl::Attach(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  if (auto* refused = context_.Refuse<Reactor>("Attach", *context, Need::kAgent)) return refused;
  auto stream = std::make_shared<AttachStream>(context_, sessions_, context->peer());
  AttachStream* reactor = stream.get();
  reactor->Start(std::move(stream));
  return reactor;
}

grpc::ServerReadReactor<v1::LogChunk>* AgentServiceImpl::PushLogs(grpc::CallbackServerContext* context,
                                                                  v1::PushLogsResponse*) {
  if (auto* refused = context_.Refuse<grpc::ServerReadReactor<v1::LogChunk>>("PushLogs", *context, Need::kAgent)) {
    return refused;
  }
  auto stream = std::make_shared<PushLogsStream>(context_, bridge_);
  PushLogsStream* reactor = stream.get();
  reactor->Start();
  return reactor;
}

void AgentServiceImpl::Release(SendToHost send) {
  if (send.message.has_ack()) {
    const absl::Time now = Clock::GetSteadyClock().TimeNow();
    if (acks_.empty()) acks_by_ = now + kAckWait;
    acks_due_ = std::min(acks_by_, now + kAckQuiet);
    acks_[send.session] = std::move(send.message);
    return;
  }
  if (auto stream = sessions_.Find(send.session)) stream->Send(std::move(send.message));
}

absl::Duration AgentServiceImpl::Flush() {
  absl::Duration wait = values_.SendDue();
  if (acks_.empty()) return wait;
  absl::Duration acks_wait = acks_due_ - Clock::GetSteadyClock().TimeNow();
  if (acks_wait > absl::ZeroDuration()) return std::min(wait, acks_wait);
  for (auto& [session, message] : acks_) {
    if (auto stream = sessions_.Find(session)) stream->Send(std::move(message));
  }
  acks_.clear();
  return wait;
}

void AgentServiceImpl::Release(EndSession end) {
  if (auto stream = sessions_.Find(end.session)) stream->End(end.status);
}

void AgentServiceImpl::EndAll(const absl::Status& status) {
  for (auto& [id, stream] : sessions_.All()) stream->End(status);
}

std::vector<Tick::Contact> AgentServiceImpl::TakeContacts() {
  std::vector<Tick::Contact> contacts;
  for (auto& [id, stream] : sessions_.All()) {
    if (auto beat = stream->TakeContacts()) contacts.push_back(*std::move(beat));
  }
  return contacts;
}

}  // namespace trainyard
