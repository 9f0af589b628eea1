// LogsClosed: a reader of output has disconnected, so its requests are removed from the desired state of the hosts.
#include "absl/status/status.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/log_readers.h"

namespace trainyard {

void Run(Turn& turn, LogsClosed& event) {
  CloseLogReader(turn, event.reader, absl::CancelledError("the reader has disconnected"));
}

}  // namespace trainyard
