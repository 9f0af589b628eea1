// GetServerInfo: returns the version, the cluster and its free slots. Changes nothing.
#include <utility>

#include "absl/status/status.h"
#include "common/api_version.h"
#include "common/limits.h"
#include "common/version.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/placement.h"

namespace trainyard {

void Run(Turn& turn, GetServerInfo& event) {
  v1::ServerInfo info;
  info.set_version(kVersion);
  info.set_protocol(limits::kProtocol);
  info.set_oldest_protocol(limits::kOldestProtocol);
  info.set_api(kApi);
  info.set_oldest_api(kOldestApi);
  info.set_cluster_id(turn.state.options.cluster_id);
  info.set_started_unix_ms(absl::ToUnixMillis(turn.state.started_at));
  for (const HostSlots& host : FreeSlots(turn.state)) {
    info.set_hosts(info.hosts() + 1);
    info.set_slots(info.slots() + host.slots);
    info.set_slots_free(info.slots_free() + host.free);
  }
  info.set_jobs_unfinished(static_cast<uint32_t>(turn.state.jobs.size() - turn.state.finished.size()));
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(info)});
}

}  // namespace trainyard
