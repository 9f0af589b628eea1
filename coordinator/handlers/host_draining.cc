// HostDraining: a daemon reports that it is about to leave with its trainers, or that it stays after all.
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {

void Run(Turn& turn, HostDraining& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(session->second);
  if (host.draining == event.draining) return;
  host.draining = event.draining;
  turn.DecideCluster(host.name, DecisionRule::kNone, NoticeLevel::kInfo,
                     absl::StrCat("host ", host.name.value(),
                                  event.draining ? ": its daemon is about to leave; nothing new is placed there"
                                                 : ": its daemon stays after all"));
  turn.ScheduleAll();
}

}  // namespace trainyard
