// Refusals that a program can read: INVALID_ARGUMENT whose payload is a google.rpc.BadRequest with a violation a field,
// which rpc_status.h sends as the details of the gRPC status. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/problems.h"
#include "google/protobuf/descriptor.h"

namespace trainyard {

inline constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// Problems.ToStatus() with the payload. Fields are named as in the message of the API, `prefix` before them
// ("spec.train.batch.global_size"), though the text names the keys that people write. The violations together stay
// small enough for the trailing metadata of any client; the last one counts what is left out.
// REQUIRES: !problems.ok(). `message` is what the paths of the problems begin in.
absl::Status BadRequestStatus(const Problems& problems, const google::protobuf::Descriptor& message,
                              absl::string_view prefix);

}  // namespace trainyard
