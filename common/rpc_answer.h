// The statuses of failed calls, each with a reason that programs can read. Control tier. Header-only. Pure.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "common/error_details.h"
#include "common/rpc_status.h"

namespace trainyard {

// The status that the coordinator sends.
inline grpc::Status ToGrpcAnswer(const absl::Status& status) { return ToGrpcStatus(CompleteDetails(status)); }

// Whether an UNAVAILABLE is the answer of a coordinator (for example: a host is not connected), which a retry alone
// does not change. False for an UNAVAILABLE of gRPC itself, which has no details and means that no coordinator
// responded. Also false if a coordinator is busy or shutting down: its UNAVAILABLE has google.rpc.RetryInfo.
inline bool IsAnswered(const grpc::Status& status) {
  absl::Status details = absl::UnavailableError("");
  CopyDetails(status, &details);
  return !status.error_details().empty() && !RetryDelayOf(details).has_value();
}

}  // namespace trainyard
