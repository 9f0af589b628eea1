// What every service and reactor needs: where events go, what time it is, who may call, and who counts the calls.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/core/event_queue.h"
#include "coordinator/rpc/access.h"

namespace trainyard {

struct RpcContext {
  EventQueue* queue = nullptr;
  Clock* clock = nullptr;
  const Access* access = nullptr;
  // A call or stream has ended: its method ("Submit") and code. Called from any thread; may be empty.
  std::function<void(const char* method, absl::StatusCode code)> count;

  void Count(const char* method, absl::StatusCode code) const {
    if (count) count(method, code);
  }

  // Null: the caller may make this call. Else the stream that refuses it, to be returned in place of the real one.
  template <typename Reactor>
  Reactor* Refuse(const char* method, const grpc::CallbackServerContext& call) const {
    absl::Status status = access->Check(call);
    if (status.ok()) return nullptr;
    Count(method, status.code());
    return new RefusedStream<Reactor>(status);  // until its OnDone
  }
};

inline absl::Status OverloadedStatus() {
  return absl::UnavailableError("the coordinator has too many requests waiting, or is going down; try again");
}
inline absl::Status GoingDownStatus() { return absl::UnavailableError("the coordinator is going down; try again"); }

}  // namespace trainyard
