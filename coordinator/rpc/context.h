// The dependencies of all services and reactors: the event queue, the clock, access control, and the counter of calls.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/api_version.h"
#include "common/clock.h"
#include "common/error_details.h"
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

  // Checks every call before its request: whether the caller has access, and whether its version of the API is
  // supported. Adds our version to the metadata of the answer.
  absl::StatusOr<Caller> Admit(grpc::CallbackServerContext& call, Need need) const {
    static const auto& server = *new ProgramVersion{.program = "trainyard-coordinator"};
    static const auto& server_header = *new std::string(FormatVersion(server));
    call.AddInitialMetadata(kServerHeader, server_header);
    absl::StatusOr<Caller> caller = access->Check(call, need);
    if (!caller.ok()) return caller;
    const auto header = call.client_metadata().find(kClientHeader);
    if (header == call.client_metadata().end()) return caller;
    const auto client = ParseVersion(absl::string_view(header->second.data(), header->second.size()));
    // Programs that are not clients of ours may send this header in another form.
    const absl::Status compatible = client.has_value() ? CheckCompatible(*client, server) : absl::OkStatus();
    return compatible.ok() ? caller : compatible;
  }

  // Null: the caller is allowed. Otherwise a stream that refuses the call, to be returned instead of the real one.
  template <typename Reactor>
  Reactor* Refuse(const char* method, grpc::CallbackServerContext& call, Need need) const {
    const absl::Status status = Admit(call, need).status();
    return status.ok() ? nullptr : Refuse<Reactor>(method, status);
  }

  // A stream that refuses an admitted call with this error.
  template <typename Reactor>
  Reactor* Refuse(const char* method, const absl::Status& status) const {
    Count(method, status.code());
    return new RefusedStream<Reactor>(status);  // deletes itself in OnDone
  }
};

// The delays after which a client retries. A coordinator that shuts down is usually started again.
inline constexpr absl::Duration kOverloadedRetry = absl::Milliseconds(500);
inline constexpr absl::Duration kShutdownRetry = absl::Seconds(1);

inline absl::Status OverloadedStatus() {
  return AddRetry(AddReason(absl::UnavailableError("the coordinator has too many requests waiting, or is shutting "
                                                   "down; try again"),
                            reasons::kOverloaded),
                  kOverloadedRetry);
}
inline absl::Status StartingStatus() {
  return AddRetry(AddReason(absl::UnavailableError("the coordinator is starting; try again"), reasons::kStarting),
                  kOverloadedRetry);
}
inline absl::Status ShuttingDownStatus() {
  return AddRetry(
      AddReason(absl::UnavailableError("the coordinator is shutting down; try again"), reasons::kShuttingDown),
      kShutdownRetry);
}

}  // namespace trainyard
