#include "coordinator/rpc/agent_service.h"

#include <string>
#include <utility>

#include "coordinator/rpc/attach_stream.h"
#include "coordinator/rpc/stream_writer.h"

namespace trainyard {

// One WatchValues. What waits is bounded by what a generation's store may hold, and shared by all its watchers.
class ValuesStream final : public grpc::ServerWriteReactor<v1::StoreValue> {
 public:
  ValuesStream(const RpcContext& context, Registry<WatchId, ValuesStream>& registry, std::string job_id)
      : context_(context), registry_(registry), id_(registry.NewId()), job_(std::move(job_id)), writer_(this) {}

  void Start(std::shared_ptr<ValuesStream> self, const v1::WatchValuesRequest& request) {
    registry_.Add(id_, std::move(self));
    if (!context_.queue->TryPost(trainyard::WatchValues{id_, request})) End(OverloadedStatus());
  }
  void Push(const ValuePtr& value) { writer_.Push(value); }
  void End(const absl::Status& status) {
    code_.store(status.code());
    // Whoever waits in a store that is over must not wait for what is still queued.
    if (status.ok()) {
      writer_.End(grpc::Status::OK);
    } else {
      writer_.Abort(ToGrpcStatus(status));
    }
  }

  void OnWriteDone(bool ok) override { writer_.OnWriteDone(ok); }
  void OnCancel() override {
    code_.store(absl::StatusCode::kCancelled);
    writer_.Abort(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
  }
  void OnDone() override {
    context_.queue->Post(WatchValuesClosed{id_, job_});
    context_.Count("WatchValues", code_.load());
    registry_.Remove(id_);  // may be the last reference: nothing follows
  }

 private:
  const RpcContext& context_;
  Registry<WatchId, ValuesStream>& registry_;
  const WatchId id_;
  const JobId job_;
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};
  StreamWriter<ValuesStream, v1::StoreValue> writer_;
};

namespace {

// One PushLogs. Reads on only while the reader it feeds keeps up.
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
    bool go_on = true;
    absl::Status status = bridge_.Push(request_id_, std::move(chunk_), [self = self_] { self->Read(); }, go_on);
    chunk_.Clear();
    if (!status.ok()) return End(status);
    if (go_on) Read();
  }
  void OnCancel() override {
    cancelled_.store(true);
    End(absl::CancelledError("cancelled"));
  }
  void OnDone() override {
    context_.Count("PushLogs", code_);
    self_.reset();  // may be the last reference: nothing follows
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
    Finish(ToGrpcStatus(status));
  }

  const RpcContext& context_;
  LogBridge& bridge_;
  v1::LogChunk chunk_;
  std::string request_id_;
  std::atomic<bool> cancelled_{false};
  absl::StatusCode code_ = absl::StatusCode::kOk;
  absl::Mutex mu_;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<PushLogsStream> self_;  // until gRPC is done with it
};

}  // namespace

AgentServiceImpl::AgentServiceImpl(const RpcContext& context, CallTable& calls, LogBridge& bridge)
    : context_(context), calls_(calls), bridge_(bridge) {}
AgentServiceImpl::~AgentServiceImpl() = default;

grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* AgentServiceImpl::Attach(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<AttachStream>(context_, sessions_, context->peer());
  AttachStream* reactor = stream.get();
  reactor->Start(std::move(stream));
  return reactor;
}

grpc::ServerUnaryReactor* AgentServiceImpl::PutValue(grpc::CallbackServerContext* context,
                                                     const v1::PutValueRequest* request,
                                                     v1::PutValueResponse* response) {
  return calls_.Start("PutValue", context, response,
                      [request](CallId call) { return trainyard::PutValue{call, *request}; });
}

grpc::ServerWriteReactor<v1::StoreValue>* AgentServiceImpl::WatchValues(grpc::CallbackServerContext*,
                                                                        const v1::WatchValuesRequest* request) {
  auto stream = std::make_shared<ValuesStream>(context_, watches_, request->job_id());
  ValuesStream* reactor = stream.get();
  reactor->Start(std::move(stream), *request);
  return reactor;
}

grpc::ServerReadReactor<v1::LogChunk>* AgentServiceImpl::PushLogs(grpc::CallbackServerContext*,
                                                                  v1::PushLogsResponse*) {
  auto stream = std::make_shared<PushLogsStream>(context_, bridge_);
  PushLogsStream* reactor = stream.get();
  reactor->Start();
  return reactor;
}

void AgentServiceImpl::Release(SendToHost send) {
  if (auto stream = sessions_.Find(send.session)) stream->Send(std::move(send.message));
}

void AgentServiceImpl::Release(EndSession end) {
  if (auto stream = sessions_.Find(end.session)) stream->End(end.status);
}

void AgentServiceImpl::Release(SendValues send) {
  for (WatchId watch : send.watches) {
    auto stream = watches_.Find(watch);
    if (stream == nullptr) continue;
    for (const ValuePtr& value : send.values) stream->Push(value);
  }
}

void AgentServiceImpl::Release(EndValues end) {
  for (WatchId watch : end.watches) {
    if (auto stream = watches_.Find(watch)) stream->End(end.status);
  }
}

void AgentServiceImpl::EndAll(const absl::Status& status) {
  for (auto& [id, stream] : sessions_.All()) stream->End(status);
  for (auto& [id, stream] : watches_.All()) stream->End(status);
}

std::vector<Tick::Heard> AgentServiceImpl::TakeHeard() {
  std::vector<Tick::Heard> heard;
  for (auto& [id, stream] : sessions_.All()) {
    if (auto time = stream->TakeHeard()) heard.push_back({id, *time});
  }
  return heard;
}

}  // namespace trainyard
