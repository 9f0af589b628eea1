// What heartbeats tell beyond "alive": the host's clock, its disk, and whether its daemon is about to leave.
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {

void TakeBeat(Host& host, const Tick::Heard& heard) {
  if (heard.clock_offset.has_value()) host.clock_offset = *heard.clock_offset;
  if (heard.disk_free_bytes.has_value()) host.disk_free_bytes = *heard.disk_free_bytes;
}

void Run(Turn& turn, HostDraining& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(session->second);
  if (host.draining == event.draining) return;
  host.draining = event.draining;
  turn.DecideCluster(host.name, "", "info",
                     absl::StrCat("host ", host.name.value(),
                                  event.draining ? ": its daemon is about to leave; nothing new is placed there"
                                                 : ": its daemon stays after all"));
  turn.ScheduleAll();
}

}  // namespace trainyard
