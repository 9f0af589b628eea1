// Gives a reason to the failures that gRPC answers without calling a handler: an unknown method, and a request that
// cannot be parsed, which gRPC (1.51) would answer with UNIMPLEMENTED and no text. The statuses of handlers already
// have reasons (common/rpc_answer.h) and pass unchanged.
//
// The statuses that gRPC's transport makes itself cannot be changed here: for a message that is too large, and, in the
// client, for a lost connection or a passed deadline. Thread-safe.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include "absl/strings/string_view.h"

namespace trainyard {

// The status to send instead of `status` for a call of `path`, "/trainyard.v1.JobService/Get". Pure.
grpc::Status WithReason(absl::string_view path, const grpc::Status& status);

class ReasonInterceptors final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // Returns null for the standard services (health, reflection) and for the streams of daemons, which carry many
  // messages.
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;
};

}  // namespace trainyard
