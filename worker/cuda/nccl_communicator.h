// c10d's NCCL group behind the Communicator interface; see CudaPlugin::NewNccl. Used only inside libtrainyard_cuda.so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/cuda/cuda_plugin.h"

namespace trainyard {

// Must be called before the process's first group: c10d's own watchdog must neither end the process nor abort a group.
void SetNcclEnvironment();

absl::StatusOr<std::unique_ptr<Communicator>> NewNcclCommunicator(const NcclOptions& options);

}  // namespace trainyard
