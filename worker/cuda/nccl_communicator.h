// c10d's NCCL group behind our interface; see CudaPlugin::NewNccl. Only inside libtrainyard_cuda.so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/cuda/cuda_plugin.h"

namespace trainyard {

// Before the process' first group: c10d's own watchdog must neither end the process nor abort anything by itself.
void SetNcclEnvironment();

absl::StatusOr<std::unique_ptr<Communicator>> NewNcclCommunicator(const NcclOptions& options);

}  // namespace trainyard
