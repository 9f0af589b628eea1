// DetachHost: the stream of a daemon has ended. Its trainers continue, and nothing is decided about them before the
// lease of the host has expired.
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/log_readers.h"

namespace trainyard {

void Run(Turn& turn, DetachHost& event) {
  auto it = turn.state.sessions.find(event.session);
  // The stream was refused, or was replaced by a newer one of the same daemon.
  if (it == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(it->second);
  turn.state.sessions.erase(it);
  ++turn.state.session_changes;
  host.session = SessionId();
  turn.Warn(absl::StrCat("host ", host.name.value(), ": its stream ended; its trainers continue"));
  EndLogsAtHost(turn, host);
  turn.ScheduleAll();
}

}  // namespace trainyard
