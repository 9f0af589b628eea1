// WatchClosed: a watcher has disconnected.
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {

void Run(Turn& turn, WatchClosed& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it != turn.state.jobs.end()) it->second.waiting_watchers.erase(event.watch);
}

}  // namespace trainyard
