// A daemon that is about to leave says so in its heartbeat; what else is in one is judged in judge_network.cc.
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {

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
