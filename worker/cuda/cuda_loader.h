// Loads libtrainyard_cuda.so. Call OpenCudaPlugin before the process's first tensor operation, at which LibTorch
// decides once and for all whether it has CUDA.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/cuda/cuda_plugin.h"

namespace trainyard {

// The library next to this program, or in the parent folder (for test programs).
std::string DefaultCudaPluginPath();

// The plugin exists until the process exits and is not owned by the caller. `abi` differs from kCudaPluginAbi only in
// tests. All errors say what to do: NotFound if the library does not exist; FailedPrecondition if it or one of
// LibTorch's CUDA libraries cannot be loaded, or if it was built for another trainer; Internal if it is loaded too
// late.
absl::StatusOr<CudaPlugin*> OpenCudaPlugin(const std::string& path, uint32_t abi = kCudaPluginAbi);

}  // namespace trainyard
