// Checks whether a daemon that has sent Hello may attach. Pure; runs on the core's thread.
#pragma once

#include "absl/status/status.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Fails with FailedPrecondition if the protocol versions do not overlap; InvalidArgument if a field is wrong;
// Unavailable if the host runs trainers of another cluster, or of a job that this store does not know and that the
// daemon would end; Aborted if a newer daemon of that name has attached; AlreadyExists if another running daemon of
// that name is attached.
absl::Status CheckHello(const Turn& turn, const v1::Hello& hello);

}  // namespace trainyard
