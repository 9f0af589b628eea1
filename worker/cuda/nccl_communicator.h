// c10d's NCCL group behind the Communicator interface; see CudaPlugin::NewNccl. Used only inside libtrainyard_cuda.so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/cuda/cuda_plugin.h"

namespace trainyard {

// Sets environment variables that keep c10d's own watchdog from ending the process or aborting a group. Call it before
// the process creates its first group.
void SetNcclEnvironment();

absl::StatusOr<std::unique_ptr<Communicator>> NewNcclCommunicator(const NcclOptions& options);

}  // namespace trainyard
