// Checks a request on its own: every text is UTF-8, every enum value is known, every list
// and number is within its limit. All requests of JobService are checked here, so that no handler receives what it
// cannot handle; PrepareJob checks the rules of a job's spec. Pure; called by rpc/ and http/ on their threads, before a
// request reaches the core, and again by submit_job.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace trainyard {

inline constexpr uint32_t kJobsPageMax = 1'000;     // of page_size in ListRequest, FindJobsRequest and GetQueueRequest
inline constexpr uint32_t kHostsPageMax = 1'000;    // of ListHostsRequest.page_size
inline constexpr uint32_t kEventsPageMax = 10'000;  // of ListEventsRequest.limit and page_size

// Possible errors: InvalidArgument: all problems, one per line, with google.rpc.BadRequest (see bad_request.h).
absl::Status CheckRequest(const google::protobuf::Message& request);

}  // namespace trainyard
