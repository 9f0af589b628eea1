// ListHosts: returns every known host, attached or not, in name order. Changes nothing.
#include <utility>

#include "absl/status/status.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/host_status.h"

namespace trainyard {

void Run(Turn& turn, ListHosts& event) {
  v1::ListHostsResponse response;
  for (const auto& [name, host] : turn.state.hosts) *response.add_hosts() = MakeHostStatus(turn, host);
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
