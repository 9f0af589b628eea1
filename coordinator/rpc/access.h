// Decides who may call what: every handler checks this first. A caller presents the token of operators, who may do
// everything, or that of viewers, who may only read and see no specs of jobs. Without tokens, every caller that reaches
// the server is an operator. Immutable after the server has been started, and therefore thread-safe.
//
// The coordinator's own HTTP port calls the services within the process (http/json_gateway.h). The port has checked
// its caller with RoleOf. It adds a secret that only this process knows, which proves that the call comes from the
// port, and states the role and the address of the caller.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/rpc_answer.h"

namespace trainyard {

enum class Role { kViewer, kOperator };

// What a method does, and so which callers it requires. A daemon acts with the token of operators.
enum class Need { kRead, kOperate, kAgent };

const google::protobuf::ServiceDescriptor& JobServiceDescriptor();
// By the schema: a method of JobService with NO_SIDE_EFFECTS needs kRead; every other one needs kOperate.
Need NeedOfJobMethod(absl::string_view method);

struct Caller {
  Role role = Role::kOperator;
  std::string by;  // "the operator at 127.0.0.1:5012 with trainctl/0.1.0"; only for Need::kOperate
};

class Access {
 public:
  // Allows all callers that reach the server.
  Access() = default;
  // Allows operators that present `token`, and viewers that present `viewer_token`, if it is not empty. `instructions`
  // explain to other callers how to get access; they do not contain a token.
  Access(std::string token, std::string instructions, std::string viewer_token = "")
      : token_(std::move(token)), viewer_token_(std::move(viewer_token)), instructions_(std::move(instructions)) {}

  // Possible errors: Unauthenticated: no token or an unknown one was presented. PermissionDenied: the call requires an
  // operator.
  absl::StatusOr<Caller> Check(const grpc::CallbackServerContext& context, Need need) const;
  // The role of a caller, by the value of its `authorization` header; nullopt if the call has no such header.
  absl::StatusOr<Role> RoleOf(absl::optional<absl::string_view> authorization) const;
  // Whether every caller that reaches the server is allowed.
  bool is_open() const { return token_.empty(); }

  // The secret of the HTTP port.
  void set_bridge_secret(std::string secret) { bridge_secret_ = std::move(secret); }
  // Marks a call that the HTTP port makes on behalf of `caller`.
  void Vouch(const Caller& caller, grpc::ClientContext& context) const;

 private:
  std::string token_;  // empty: all callers are allowed
  std::string viewer_token_;
  std::string bridge_secret_;
  std::string instructions_;
};

// "curl/8.0": the first part of the header in which a caller names its program, escaped and cut. Pure.
std::string ProgramText(absl::string_view header);

// The token in "Bearer TOKEN"; empty if there is none. Pure.
absl::string_view BearerToken(absl::string_view authorization);

// Reduces every spec in the message to the name and the number of ranks, and removes decisions about it: commands,
// environments and addresses of webhooks may contain secrets. Pure.
void HideSpecs(google::protobuf::Message& message);

// Ends a stream that is not allowed. Deletes itself when gRPC is done with it.
template <typename Reactor>
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpcAnswer(status)); }
  void OnDone() override { delete this; }
};

}  // namespace trainyard
