#include "coordinator/http/json_gateway.h"

#include <grpcpp/alarm.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http_limits.h"
#include "common/rpc_answer.h"
#include "coordinator/http/api_status.h"
#include "coordinator/rpc/context.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr char kLinesType[] = "application/x-ndjson; charset=utf-8";
// The response of a stream begins after this time even without a message, so that its reader knows that the stream was
// accepted.
constexpr absl::Duration kBeginWait = absl::Milliseconds(300);
constexpr absl::Duration kStopWait = absl::Seconds(5);

std::unique_ptr<Message> NewMessage(const Descriptor& type) {
  return std::unique_ptr<Message>(google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

grpc::ByteBuffer ToBuffer(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Null: the bytes are no such message.
std::unique_ptr<Message> ReadMessage(const Descriptor& type, grpc::ByteBuffer& buffer) {
  std::unique_ptr<Message> message = NewMessage(type);
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) return nullptr;
  return message;
}

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

grpc::Status UnreadableStatus() {
  return ToGrpcAnswer(absl::InternalError("the answer of the coordinator cannot be read"));
}

// The status of a failed call, for its client. A status without details does not come from a handler: gRPC has ended
// the call within this process.
grpc::Status ForClient(const grpc::Status& status, bool is_stream) {
  if (status.ok() || !status.error_details().empty()) return status;
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      if (is_stream) return ToGrpcAnswer(absl::DeadlineExceededError("the deadline of the stream has passed"));
      return ToGrpcAnswer(AddReason(
          absl::DeadlineExceededError("the coordinator did not answer before the deadline; the call may have taken "
                                      "effect or not"),
          reasons::kNoAnswerInTime));
    case grpc::StatusCode::UNAVAILABLE:
      return ToGrpcAnswer(ShuttingDownStatus());
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ToGrpcAnswer(AddReason(FromGrpcStatus(status), reasons::kMessageTooLarge));
    default:
      return ToGrpcAnswer(FromGrpcStatus(status));
  }
}

// The deadline of a call, from the header Grpc-Timeout, which counts from the arrival of the request, because the
// request may have waited for its body or for a handler. Without the header, a stream has no deadline.
absl::StatusOr<absl::Time> DeadlineOf(const HttpRequest& request, bool is_stream) {
  const auto header = request.header("grpc-timeout");
  if (!header.has_value()) return is_stream ? absl::InfiniteFuture() : absl::Now() + limits::kHttpCallWait;
  const absl::StatusOr<absl::Duration> timeout = ParseGrpcTimeout(*header);
  if (!timeout.ok()) return timeout.status();
  const absl::Duration waited = HttpNow() - request.arrival;
  return absl::Now() - waited + (is_stream ? *timeout : std::min(*timeout, limits::kHttpCallWaitMax));
}

}  // namespace

const MethodDescriptor* FindJobMethod(absl::string_view name) {
  return JobServiceDescriptor().FindMethodByName(std::string(name));
}

std::string MethodsJson() {
  nlohmann::json methods = nlohmann::json::array();
  const auto& service = JobServiceDescriptor();
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    methods.push_back({{"name", method.name()},
                       {"path", absl::StrCat(kMethodPrefix, method.name())},
                       {"request", method.input_type()->name()},
                       {"response", method.output_type()->name()},
                       {"reads", NeedOfJobMethod(method.name()) == Need::kRead},
                       {"streams", method.server_streaming()}});
  }
  return nlohmann::json({{"methods", methods}}).dump();
}

// A call with one answer. Owned by the callback that gRPC calls at its end.
struct JsonGateway::UnaryCall {
  grpc::ClientContext context;
  grpc::ByteBuffer request, response;
  std::atomic<bool> ended{false};
};

// A call with a stream of messages. It owns itself until gRPC is done with it; its exchange may own it, too.
class StreamCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamCall(JsonGateway& gateway, const MethodDescriptor& method, StreamFormat format,
             std::shared_ptr<HttpExchange> exchange)
      : gateway_(gateway), method_(method), format_(std::move(format)), exchange_(std::move(exchange)) {}

  grpc::ClientContext& context() { return context_; }

  void Start(const std::shared_ptr<StreamCall>& self, const Message& request) {
    self_ = self;
    request_ = ToBuffer(request);
    gateway_.stub_->PrepareBidiStreamingCall(&context_, PathOf(method_), {}, this);
    // Until a read fails, other threads start reads, too.
    AddHold();
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&buffer_);
    StartCall();
    // An alarm keeps its function as long as it exists, so the function must not own the call, which owns the alarm.
    begin_alarm_.Set(absl::ToChronoTime(absl::Now() + kBeginWait), [weak = std::weak_ptr(self)](bool in_time) {
      const std::shared_ptr<StreamCall> call = in_time ? weak.lock() : nullptr;
      if (call != nullptr) call->Begin();
    });
    exchange_->OnChange([self] { self->OnExchangeChanged(); });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    std::unique_ptr<Message> message = ReadMessage(*method_.output_type(), buffer_);
    const absl::StatusOr<std::string> json =
        message == nullptr ? absl::InternalError("no message") : MessageJson(*message);
    if (!json.ok()) {
      unreadable_ = true;
      context_.TryCancel();
      return RemoveHold();
    }
    Begin();
    exchange_->Write(Format(*message, *json));
    absl::MutexLock lock(&mu_);
    paused_ = true;
    ReadIfRoom();
  }

  void OnDone(const grpc::Status& status) override {
    begin_alarm_.Cancel();
    End(unreadable_ ? UnreadableStatus() : ForClient(status, /*is_stream=*/true));
    gateway_.Remove(&context_);
    self_ = nullptr;  // may be the last reference
  }

 private:
  void Begin() {
    bool is_first = false;
    {
      absl::MutexLock lock(&begin_mu_);
      if (!begun_ && !refused_) {
        begun_ = true;
        is_first = exchange_->Begin(
            {.code = 200, .type = format_.events ? kEventStreamType : kLinesType, .headers = kEventStreamHeaders},
            format_.events ? kEventHeartbeat : "");
        if (!is_first) context_.TryCancel();
      }
    }
    if (is_first && format_.begun) format_.begun();
  }

  std::string Format(const Message& message, const std::string& json) const {
    if (!format_.events) return absl::StrCat("{\"result\":", json, "}\n");
    const std::string id = format_.id ? absl::StrCat("id: ", format_.id(message), "\n") : "";
    return absl::StrCat(id, "data: ", json, "\n\n");
  }

  void End(const grpc::Status& status) {
    {
      absl::MutexLock lock(&begin_mu_);
      refused_ = !begun_ && !status.ok();
      if (refused_) return exchange_->Respond(StatusResponse(status));
    }
    Begin();
    if (format_.events) {
      exchange_->Write(absl::StrCat("event: end\ndata: ", StatusJson(status), "\n\n"));
    } else if (!status.ok()) {
      exchange_->Write(absl::StrCat("{\"error\":", StatusJson(status), "}\n"));
    }
    exchange_->End();
  }

  void ReadIfRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!paused_ || exchange_->IsFull()) return;
    paused_ = false;
    StartRead(&buffer_);
  }

  void OnExchangeChanged() {
    if (exchange_->IsClosed()) context_.TryCancel();
    absl::MutexLock lock(&mu_);
    ReadIfRoom();  // after the cancellation, this read fails, which ends the call
  }

  JsonGateway& gateway_;
  const MethodDescriptor& method_;
  const StreamFormat format_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::shared_ptr<StreamCall> self_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, buffer_;
  grpc::Alarm begin_alarm_;
  bool unreadable_ = false;
  absl::Mutex begin_mu_;
  bool begun_ ABSL_GUARDED_BY(begin_mu_) = false;
  bool refused_ ABSL_GUARDED_BY(begin_mu_) = false;
  absl::Mutex mu_;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;  // no read is running
};

void JsonGateway::Start(const std::shared_ptr<grpc::Channel>& channel, Vouch vouch) {
  stub_ = std::make_unique<grpc::GenericStub>(channel);
  vouch_ = std::move(vouch);
}

void JsonGateway::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
  changed_.AwaitFor(&mu_, kStopWait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_.empty(); });
}

absl::Status JsonGateway::Add(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return ShuttingDownStatus();
  if (stub_ == nullptr) return StartingStatus();
  calls_.insert(context);
  return absl::OkStatus();
}

void JsonGateway::Remove(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  calls_.erase(context);
  changed_.SignalAll();
}

void JsonGateway::Handle(const MethodDescriptor& method, const HttpRequest& request, const Caller& caller,
                         const std::shared_ptr<HttpExchange>& exchange) {
  std::unique_ptr<Message> message = NewMessage(*method.input_type());
  absl::Status status = ReadMessageJson(request.body, *message);
  const absl::StatusOr<absl::Time> deadline = DeadlineOf(request, method.server_streaming());
  if (status.ok()) status = deadline.status();
  if (status.ok() && *deadline <= absl::Now()) {
    status = absl::DeadlineExceededError("the deadline passed before the call was made; nothing was done");
  }
  if (!status.ok()) return exchange->Respond(StatusResponse(status));
  if (method.server_streaming()) {
    const auto accept = request.header("accept");
    const bool events = accept.has_value() && absl::StrContains(*accept, "text/event-stream");
    return Stream(method, *message, caller, {.events = events, .deadline = *deadline}, exchange);
  }
  auto call = std::make_shared<UnaryCall>();
  if (status = Add(&call->context); !status.ok()) return exchange->Respond(StatusResponse(status));
  call->request = ToBuffer(*message);
  call->context.set_deadline(absl::ToChronoTime(*deadline));
  vouch_(caller, call->context);
  stub_->UnaryCall(&call->context, PathOf(method), {}, &call->request, &call->response,
                   [this, call, exchange, type = method.output_type()](const grpc::Status& ended) {
                     call->ended = true;
                     std::unique_ptr<Message> answer = ended.ok() ? ReadMessage(*type, call->response) : nullptr;
                     const absl::StatusOr<std::string> json =
                         answer == nullptr ? absl::InternalError("no message") : MessageJson(*answer);
                     if (json.ok()) {
                       exchange->Respond({.code = 200, .type = kJsonType, .body = *json + "\n"});
                     } else {
                       exchange->Respond(StatusResponse(ended.ok() ? UnreadableStatus() : ForClient(ended, false)));
                     }
                     Remove(&call->context);
                   });
  // A call whose client has disconnected is cancelled. The core checks that before it handles the call
  // (CallTable::CheckWaiting), so a call that is cancelled while it waits for the core changes nothing. After that, a
  // cancellation has no effect: the core handles the whole call at once, and only its answer waits, for the store.
  exchange->OnChange([call, exchange = exchange.get()] {
    if (exchange->IsClosed() && !call->ended) call->context.TryCancel();
  });
}

void JsonGateway::Stream(const MethodDescriptor& method, const Message& request, const Caller& caller,
                         StreamFormat format, const std::shared_ptr<HttpExchange>& exchange) {
  const absl::Time deadline = format.deadline;
  auto call = std::make_shared<StreamCall>(*this, method, std::move(format), exchange);
  if (const absl::Status added = Add(&call->context()); !added.ok()) {
    return exchange->Respond(StatusResponse(added));
  }
  vouch_(caller, call->context());
  if (deadline < absl::InfiniteFuture()) call->context().set_deadline(absl::ToChronoTime(deadline));
  call->Start(call, request);
}

}  // namespace trainyard
