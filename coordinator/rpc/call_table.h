// Calls with a single answer. A call gets an id, its event is sent to the core, and the core's Reply with that id ends
// it. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc_answer.h"
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
    absl::StatusOr<Caller> caller = context_.Admit(*context, NeedOfJobMethod(method));
    const absl::Status allowed = caller.ok() ? CheckRequest(request) : caller.status();
    if (!allowed.ok()) {
      context_.Count(method, allowed.code());
      reactor->Finish(ToGrpcAnswer(allowed));
      return reactor;
    }
    const auto done = [this, method, began, reactor, response, role = caller->role](Reply& reply) {
      if (reply.status.ok()) *response = std::move(std::get<Response>(reply.response));
      if (reply.status.ok() && role == Role::kViewer) HideSpecs(*response);
      context_.CountAnswer(method, reply.status.code(), began);
      reactor->Finish(ToGrpcAnswer(reply.status));
    };
    const auto make_event_by = [&](CallId call) {
      auto event = make_event(call);
      if constexpr (requires { event.by; }) event.by = std::move(caller->by);
      return event;
    };
    Add(make_event_by, {.done = done, .context = context});
    return reactor;
  }

  // Posts the event that `make_event(call)` returns, without access control. `done` receives the reply, on the loop's
  // thread, or immediately if the event cannot be posted.
  template <typename MakeEvent>
  void Ask(MakeEvent make_event, std::function<void(Reply&)> done) {
    Add(make_event, {.done = std::move(done)});
  }

  // Whether the call still waits for its answer. A call that no longer waits must not take effect. Possible errors:
  // DeadlineExceeded: its deadline has passed. Cancelled: its caller has cancelled it or gone away.
  absl::Status CheckWaiting(CallId call) {
    absl::MutexLock lock(&mu_);
    const auto it = calls_.find(call);
    if (it == calls_.end() || it->second.context == nullptr) return absl::OkStatus();
    // Nothing ends the call while it is in the table, so its context is valid.
    const grpc::CallbackServerContext& context = *it->second.context;
    if (std::chrono::system_clock::now() >= context.deadline()) {
      return absl::DeadlineExceededError("the deadline of the call passed before it was processed; nothing was done");
    }
    if (context.IsCancelled()) {
      return absl::CancelledError("the call was cancelled before it was processed; nothing was done");
    }
    return absl::OkStatus();
  }

  void Finish(Reply reply) {
    std::function<void(Reply&)> done;
    {
      absl::MutexLock lock(&mu_);
      auto it = calls_.find(reply.call);
      if (it == calls_.end()) return;
      done = std::move(it->second.done);
      calls_.erase(it);
    }
    done(reply);
  }

  void FailAll(const absl::Status& status) {
    std::vector<CallId> ids;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [id, call] : calls_) ids.push_back(id);
    }
    for (CallId id : ids) Finish({id, status, {}});
  }

 private:
  struct Call {
    std::function<void(Reply&)> done;
    const grpc::CallbackServerContext* context = nullptr;  // null: it is not a call of gRPC
  };

  template <typename MakeEvent>
  void Add(MakeEvent make_event, Call call) {
    CallId id(next_.fetch_add(1, std::memory_order_relaxed));
    {
      absl::MutexLock lock(&mu_);
      calls_[id] = std::move(call);
    }
    if (!context_.queue->TryPost(make_event(id))) Finish({id, OverloadedStatus(), {}});
  }

  const RpcContext& context_;
  std::atomic<uint64_t> next_{1};
  absl::Mutex mu_;
  absl::flat_hash_map<CallId, Call> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
