// Calls with a single answer. A call gets an id, its event is sent to the core, and the core's Reply with that id ends
// it. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc_status.h"
#include "coordinator/core/effect.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/rpc/context.h"

namespace trainyard {

class CallTable {
 public:
  explicit CallTable(const RpcContext& context) : context_(context) {}

  // Posts the event that `make_event(call)` returns and answers the call when its reply arrives. Callers that are not
  // allowed, and requests that CheckRequest refuses, are answered immediately.
  template <typename Response, typename MakeEvent>
  grpc::ServerUnaryReactor* Start(const char* method, grpc::CallbackServerContext* context,
                                  const google::protobuf::Message& request, Response* response, MakeEvent make_event) {
    const absl::Time began = context_.clock->TimeNow();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status allowed = context_.access->Check(*context);
    if (allowed.ok()) allowed = CheckRequest(request);
    if (!allowed.ok()) {
      context_.Count(method, allowed.code());
      reactor->Finish(ToGrpcStatus(allowed));
      return reactor;
    }
    Ask(make_event, [this, method, began, reactor, response](Reply& reply) {
      if (reply.status.ok()) *response = std::move(std::get<Response>(reply.response));
      context_.CountAnswer(method, reply.status.code(), began);
      reactor->Finish(ToGrpcStatus(reply.status));
    });
    return reactor;
  }

  // Posts the event that `make_event(call)` returns, without access control. `done` receives the reply, on the loop's
  // thread, or immediately if the event cannot be posted.
  template <typename MakeEvent>
  void Ask(MakeEvent make_event, std::function<void(Reply&)> done) {
    CallId id(next_.fetch_add(1, std::memory_order_relaxed));
    {
      absl::MutexLock lock(&mu_);
      calls_[id] = std::move(done);
    }
    if (!context_.queue->TryPost(make_event(id))) Finish({id, OverloadedStatus(), {}});
  }

  void Finish(Reply reply) {
    std::function<void(Reply&)> done;
    {
      absl::MutexLock lock(&mu_);
      auto it = calls_.find(reply.call);
      if (it == calls_.end()) return;
      done = std::move(it->second);
      calls_.erase(it);
    }
    done(reply);
  }

  void FailAll(const absl::Status& status) {
    std::vector<CallId> ids;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [id, done] : calls_) ids.push_back(id);
    }
    for (CallId id : ids) Finish({id, status, {}});
  }

 private:
  const RpcContext& context_;
  std::atomic<uint64_t> next_{1};
  absl::Mutex mu_;
  absl::flat_hash_map<CallId, std::function<void(Reply&)>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
