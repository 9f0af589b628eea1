// Which host has other data than the job, when a job restarts on hosts that do not all have the same files. Such a job
// is not refused: it runs on other hosts, or on this one once it has the right files
// (coordinator/handlers/avoid_hosts.h). If no host has the data of the checkpoint any more, the data has changed, and
// the job is refused.
//
// Used by the thread of the training loop.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/data/data_check.h"
#include "worker/link/config.h"
#include "worker/link/link.h"

namespace trainyard {

// Collective, called by all ranks if the job would be refused because of its data. Returns `refusal` if the job does
// not restart from a checkpoint, or if FindHostsWithOtherData finds no host. Otherwise returns an error for which
// IsCheckpointMissing holds on the ranks whose hosts have other data, and Aborted, which names these ranks, on the
// others. `checkpoint` is used on rank 0 only; `content_hash` returns the hash of this rank's training data, and may
// read all of them. `link`, where the phase is reported, may be null. Possible errors: also those of a Collective.
absl::Status RefuseDataOrHosts(const StartOrder& order, const DataOfCheckpoint& checkpoint,
                               absl::FunctionRef<std::string()> content_hash, Communicator& world, Link* link,
                               absl::Status refusal);

}  // namespace trainyard
