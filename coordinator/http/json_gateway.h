// JobService in JSON over HTTP. There is no code for single methods: a method is found in the descriptor of the
// service, the body becomes its request, and a call within this process reaches the same handler, checks and counters
// as a call over gRPC. Unary calls have one answer; streaming ones answer with a line of JSON, or with an event of a
// stream of events, for each message. Thread-safe.
//
// If a client disconnects before it has its answer, its call is cancelled, as over gRPC: the call has no effect unless
// the core has begun to handle it.
//
// The next message of a stream is read only while few bytes wait for its client (HttpExchange::IsFull), so a slow
// client slows the stream and uses a bounded amount of memory.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http_exchange.h"
#include "common/http_message.h"
#include "common/steady_cond_var.h"
#include "coordinator/rpc/access.h"

namespace trainyard {

// The type and the headers of a stream of events, and the comment that keeps it alive.
inline constexpr char kEventStreamType[] = "text/event-stream; charset=utf-8";
inline constexpr char kEventStreamHeaders[] = "X-Accel-Buffering: no\r\n";
inline constexpr char kEventHeartbeat[] = ": alive\n\n";

// The path of a method of JobService is this prefix followed by the name of the method.
inline constexpr char kMethodPrefix[] = "/api/v1/JobService/";

// The method of JobService with this name; null: there is none.
const google::protobuf::MethodDescriptor* FindJobMethod(absl::string_view name);

// The methods of JobService: {"methods": [{"name": "Get", "path": ..., "request": "GetRequest", "response": "Job",
// "reads": true, "streams": false}]}. Pure.
std::string MethodsJson();

// How a stream of messages is written. `id` returns the id of an event, from which a reader can resume; null: events
// have no ids.
struct StreamFormat {
  bool events = false;  // a stream of events; else lines of {"result": MESSAGE}
  absl::Time deadline = absl::InfiniteFuture();
  std::function<std::string(const google::protobuf::Message& message)> id = nullptr;
  std::function<void()> begun = nullptr;  // called after the head of the response, once
};

class StreamCall;

class JsonGateway {
 public:
  // Adds the metadata by which the server accepts that a call of this process is made for `caller` (rpc/access.h).
  using Vouch = std::function<void(const Caller& caller, grpc::ClientContext& context)>;

  JsonGateway() = default;
  ~JsonGateway() { Stop(); }
  JsonGateway(const JsonGateway&) = delete;
  JsonGateway& operator=(const JsonGateway&) = delete;

  // Begins to make calls on `channel`; `vouch` is called for each. REQUIRES: Handle and Stream were not called yet.
  void Start(const std::shared_ptr<grpc::Channel>& channel, Vouch vouch);
  // Cancels all calls and waits for their ends, at most for 5 s.
  void Stop();

  // Answers a request for a method. REQUIRES: the caller may call the method.
  void Handle(const google::protobuf::MethodDescriptor& method, const HttpRequest& request, const Caller& caller,
              const std::shared_ptr<HttpExchange>& exchange);
  // Answers with the messages of a streaming method.
  void Stream(const google::protobuf::MethodDescriptor& method, const google::protobuf::Message& request,
              const Caller& caller, StreamFormat format, const std::shared_ptr<HttpExchange>& exchange);

 private:
  friend class StreamCall;
  struct UnaryCall;

  // Possible errors: Unavailable: this gateway has not started, or is stopping.
  absl::Status Add(grpc::ClientContext* context);
  void Remove(grpc::ClientContext* context);

  std::unique_ptr<grpc::GenericStub> stub_;
  Vouch vouch_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
