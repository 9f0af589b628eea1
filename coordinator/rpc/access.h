// Decides who may call: every handler checks this first. There is one rule for all calls so far: a caller must present
// the token. Immutable after the server has been started, and therefore thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/rpc_answer.h"

namespace trainyard {

class Access {
 public:
  // Allows all callers that reach the server.
  Access() = default;
  // Allows callers that present `token`. `instructions` explain to other callers how to get access; they do not contain
  // the token.
  Access(std::string token, std::string instructions)
      : token_(std::move(token)), instructions_(std::move(instructions)) {}

  // Possible errors: Unauthenticated if no token or a different one was presented.
  absl::Status Check(const grpc::CallbackServerContext& context) const;
  // The same, for the value of an `authorization` header. None: there is no such header.
  absl::Status CheckHeader(absl::optional<absl::string_view> authorization) const;
  // Whether every caller that reaches the server is allowed.
  bool is_open() const { return token_.empty(); }

 private:
  std::string token_;  // empty: all callers are allowed
  std::string instructions_;
};

// The token in "Bearer TOKEN"; empty if there is none. Pure.
absl::string_view BearerToken(absl::string_view authorization);

// Ends a stream that is not allowed. Deletes itself when gRPC is done with it.
template <typename Reactor>
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpcAnswer(status)); }
  void OnDone() override { delete this; }
};

}  // namespace trainyard
