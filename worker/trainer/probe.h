// Times hosts instead of training: a matrix product on each rank, then all-reduces among them. A rank of a job with
// `probe` runs this in place of the training loop; `trainyard-trainer --probe` does so for this host alone.
#pragma once

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/trainer/run.h"

namespace trainyard {

// Blocks for about as long as it measures. Every rank of `communicator` calls it. In a world of 1 there is no
// all-reduce to time, and its two numbers are 0. Possible errors: those of a Collective.
absl::StatusOr<ProbeFact> MeasureHost(const TrainConfig::Probe& config, Communicator& communicator);

// One rank of a probe from its order to its exit code, as RunRank. It makes no steps, so there is no boundary to stop
// at: a stop or SIGTERM finds it done, or the daemon's grace ends it.
// REQUIRES: order.config.probe.
TrainerExit RunProbe(const StartOrder& order, const RunOptions& options);

// Two ranks in two threads over loopback. The matrix product is that of the first, made while the other waits.
absl::StatusOr<ProbeFact> ProbeThisHost(const TrainConfig::Probe& config);

}  // namespace trainyard
