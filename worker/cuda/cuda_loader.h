// Opens libtrainyard_cuda.so. Must come before the process' first tensor operation: LibTorch decides then, once,
// whether it has CUDA.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/cuda/cuda_plugin.h"

namespace trainyard {

// Beside this program, or in the folder above it (a test program's).
std::string DefaultCudaPluginPath();

// The plugin lives as long as the process and is not owned by the caller. `abi`: other than kCudaPluginAbi in tests
// only. Possible errors, all of which say what to do: NotFound when the library is not there; FailedPrecondition when
// it or one of LibTorch's CUDA libraries cannot be loaded, or it was built for another trainer; Internal when it comes
// too late.
absl::StatusOr<CudaPlugin*> OpenCudaPlugin(const std::string& path, uint32_t abi = kCudaPluginAbi);

}  // namespace trainyard
