// Readers of output. The request of a reader becomes log requests in the desired states of the hosts that run the
// ranks. What the hosts push reaches the reader through rpc/log_bridge, not through the core. When the reader
// disconnects, its requests are removed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Sends requests to the reader's hosts that have none yet. Returns the name of a host that is not attached, or an empty
// text.
std::string RequestLogs(Turn& turn, const Job& job, LogReader& reader, std::vector<std::string>& request_ids);

// Possible errors: Unavailable if more requests than limits::kLogRequestsPerHost are open for a host of the reader.
// REQUIRES: the reader is in `state`.
absl::Status CheckLogRequests(const State& state, const LogReader& reader);

// Returns Unavailable: the output is on a host that is not attached.
absl::Status NotAttached(absl::string_view host);

// Moves the requests of the job's readers, because a new generation may run on other hosts. Ends a reader if one of its
// hosts has more open requests than limits::kLogRequestsPerHost.
void MoveLogsOfJob(Turn& turn, const Job& job);
// Ends the requests that wait for new output, because the job has ended.
void EndLogsOfJob(Turn& turn, const Job& job);
// Ends the readers that have a request at this host, because it has detached.
void EndLogsAtHost(Turn& turn, const Host& host);
void CloseLogReader(Turn& turn, ReaderId id, absl::Status status);

}  // namespace trainyard
