// Measures hosts instead of training: a matrix product on each rank, then all-reduces among them. A rank of a job with
// `probe` runs this in place of the training loop; `trainyard-trainer --probe` runs it for this host alone.
#pragma once

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/trainer/run.h"

namespace trainyard {

// Blocks while it measures. Every rank of `communicator` calls it. With a single rank no all-reduce is timed, and the
// latency and the bandwidth are 0. Possible errors: those of a Collective.
absl::StatusOr<ProbeFact> MeasureHost(const TrainConfig::Probe& config, Communicator& communicator);

// Like RunRank, runs one rank of a probe from its order to its exit code. A rank that measures cannot stop early: after
// a stop or SIGTERM it completes the measurements, unless the daemon kills it after the grace period.
// REQUIRES: order.config.probe.
TrainerExit RunProbe(const StartOrder& order, const RunOptions& options);

// Times the matrix product, then runs two ranks in two threads, which time all-reduces over loopback.
absl::StatusOr<ProbeFact> ProbeThisHost(const TrainConfig::Probe& config);

}  // namespace trainyard
