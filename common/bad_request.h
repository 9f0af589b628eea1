// Errors that programs can read: INVALID_ARGUMENT with a google.rpc.BadRequest as payload, which has one violation per
// problem. rpc_status.h sends it as the details of the gRPC status. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/error_details.h"
#include "common/problems.h"
#include "google/protobuf/descriptor.h"

namespace trainyard {

// Returns problems.ToStatus() with the payload. Violations name fields as the API does, after `prefix`
// ("spec.train.batch.global_size"); their descriptions name the YAML keys. The violations are limited to what fits into
// the trailing metadata that any client accepts; the last one counts those left out.
// REQUIRES: !problems.ok(). The paths of the problems are relative to `message`.
absl::Status BadRequestStatus(const Problems& problems, const google::protobuf::Descriptor& message,
                              absl::string_view prefix);

}  // namespace trainyard
