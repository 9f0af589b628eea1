// LogPushEnded: a daemon has sent all output that one log request covers.
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
    bool is_done = !reader.request.follow() || reader.close_at != absl::InfiniteFuture();
    if (reader.open.empty() && is_done) CloseLogReader(turn, id, absl::OkStatus());
    return;
  }
}

}  // namespace trainyard
