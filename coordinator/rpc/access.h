// Who may call: what every handler of a call asks before it does anything. One rule for all calls so far: whoever shows
// the token. Immutable once the server has been started, so thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc_status.h"

namespace trainyard {

class Access {
 public:
  // Everybody who reaches the server may call.
  Access() = default;
  // Who shows `token` may. `ways_in` tells the others what they can do, in a sentence without the token.
  Access(std::string token, std::string ways_in) : token_(std::move(token)), ways_in_(std::move(ways_in)) {}

  // Possible errors: Unauthenticated: no token was shown, or another one.
  absl::Status Check(const grpc::CallbackServerContext& context) const;

 private:
  std::string token_;  // empty: everybody may
  std::string ways_in_;
};

// The token in "Bearer TOKEN"; empty: there is none. Pure.
absl::string_view BearerToken(absl::string_view authorization);

// Ends a stream that may not be. Deletes itself when gRPC is done with it.
template <typename Reactor>
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace trainyard
