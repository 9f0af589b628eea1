// The dependencies of all services and reactors: the event queue, the clock, access control, and the counter of calls.
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
  // Reports the method ("Submit") and status code of an ended call or stream. Called from any thread; may be empty.
  std::function<void(const char* method, absl::StatusCode code)> count;
  // Reports how long a call with one answer took. Called from any thread; may be empty.
  std::function<void(const char* method, absl::Duration duration)> answered = nullptr;

  void Count(const char* method, absl::StatusCode code) const {
    if (count) count(method, code);
  }

  // Reports an answered call that arrived at `began`.
  void CountAnswer(const char* method, absl::StatusCode code, absl::Time began) const {
    Count(method, code);
    if (answered) answered(method, clock->TimeNow() - began);
  }

  // Null: the caller is allowed. Otherwise a stream that refuses the call, to be returned instead of the real one.
  template <typename Reactor>
  Reactor* Refuse(const char* method, const grpc::CallbackServerContext& call) const {
    absl::Status status = access->Check(call);
    if (status.ok()) return nullptr;
    Count(method, status.code());
    return new RefusedStream<Reactor>(status);  // deletes itself in OnDone
  }
};

inline absl::Status OverloadedStatus() {
  return absl::UnavailableError("the coordinator has too many requests waiting, or is shutting down; try again");
}
inline absl::Status ShuttingDownStatus() {
  return absl::UnavailableError("the coordinator is shutting down; try again");
}

}  // namespace trainyard
