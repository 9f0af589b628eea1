// LogPushEnded: a daemon has sent all that one log request asked for.
#include "absl/status/status.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/log_readers.h"

namespace trainyard {

void Run(Turn& turn, LogPushEnded& event) {
  for (auto& [id, reader] : turn.state.readers) {
    auto it = reader.open.find(event.request_id);
    if (it == reader.open.end()) continue;
    turn.Push(it->second);
    reader.open.erase(it);
    bool over = !reader.request.follow() || reader.close_at != absl::InfiniteFuture();
    if (reader.open.empty() && over) CloseLogReader(turn, id, absl::OkStatus());
    return;
  }
}

}  // namespace trainyard
