// Whether a daemon may attach.
#pragma once

#include "absl/status/status.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Possible errors: FailedPrecondition: the protocol versions do not overlap. InvalidArgument: a field is wrong.
// Unavailable: the host runs trainers of another cluster, or of a job that this store does not know and that the daemon
// would end. Aborted: a newer daemon of that name has attached. AlreadyExists: another one is attached.
absl::Status CheckHello(const Turn& turn, const v1::Hello& hello);

}  // namespace trainyard
