// What a request must be before the coordinator looks at its own state: every text plain UTF-8, every enum value known,
// every list and number within its limit. One place for all requests of JobService, so that no operation meets what it
// cannot handle; a job's spec has rules of its own, which PrepareJob checks. Pure; called by rpc/ on gRPC's threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace trainyard {

inline constexpr uint32_t kJobsPageMax = 1'000;     // of ListRequest.page_size
inline constexpr uint32_t kEventsPageMax = 10'000;  // of ListEventsRequest.limit

// Possible errors: InvalidArgument: every problem, one a line, with google.rpc.BadRequest (see bad_request.h).
absl::Status CheckRequest(const google::protobuf::Message& request);

}  // namespace trainyard
