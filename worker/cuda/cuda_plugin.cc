// The implementation of the plugin and its two exported functions.
#include "worker/cuda/cuda_plugin.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/nccl_communicator.h"

namespace trainyard {
namespace {

// CUDA encodes version 13.0 as 13000.
std::string CudaVersion(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

absl::Status NoDevice(cudaError_t error) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();  // clears the error, which LibTorch would otherwise report at its next call
  return absl::FailedPreconditionError(absl::StrCat(
      "no GPU can be used on this machine: ", error == cudaSuccess ? "CUDA lists none" : cudaGetErrorString(error),
      "; ",
      driver == 0 ? "there is no NVIDIA driver" : absl::StrCat("the NVIDIA driver supports CUDA ", CudaVersion(driver)),
      ", and CUDA ", CudaVersion(runtime),
      " is needed. Install or update the driver until nvidia-smi lists a GPU (for a container, start it with "
      "access to the GPUs), or set resources.device to cpu"));
}

std::string UuidOf(const cudaDeviceProp& properties) {
  std::string text = "GPU-";
  for (char byte : properties.uuid.bytes) absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(byte));
  return text;
}

class Plugin final : public CudaPlugin {
 public:
  Plugin() { SetNcclEnvironment(); }

  absl::StatusOr<int> NumDevices() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) return NoDevice(error);
    return count;
  }

  absl::StatusOr<CudaDevice> Use(int index) override {
    ASSIGN_OR_RETURN(const int count, NumDevices());
    if (index < 0 || index >= count) {
      return absl::InvalidArgumentError(absl::StrCat("GPU ", index, " does not exist; this machine has ", count));
    }
    try {
      c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
      const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
      return CudaDevice{.index = index,
                        .name = properties.name,
                        .uuid = UuidOf(properties),
                        .major = properties.major,
                        .minor = properties.minor,
                        .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                        .slow_kernels_reason = std::string(LoadKernels(properties.major, properties.minor).message())};
    } catch (const c10::Error& error) {
      return absl::InternalError(absl::StrCat("GPU ", index, " cannot be used: ", error.what_without_backtrace()));
    }
  }

  absl::Status CompileKernels(int major, int minor) override { return trainyard::CompileKernels(major, minor); }

  absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(const NcclOptions& options) override {
    RETURN_IF_ERROR(NumDevices().status());
    return NewNcclCommunicator(options);
  }

  CudaMemory MemoryOf(int index) override {
    using c10::CachingAllocator::StatType;
    constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
    return {.used_bytes = stats.allocated_bytes[kAll].current,
            .used_peak_bytes = stats.allocated_bytes[kAll].peak,
            .reserved_bytes = stats.reserved_bytes[kAll].current,
            .reserved_peak_bytes = stats.reserved_bytes[kAll].peak,
            .num_retries = stats.num_alloc_retries};
  }
};

}  // namespace
}  // namespace trainyard

extern "C" __attribute__((visibility("default"))) uint32_t trainyard_cuda_plugin_abi() {
  return trainyard::kCudaPluginAbi;
}

extern "C" __attribute__((visibility("default"))) trainyard::CudaPlugin* trainyard_cuda_plugin(uint32_t abi) {
  if (abi != trainyard::kCudaPluginAbi) return nullptr;
  static auto* plugin = new trainyard::Plugin;
  return plugin;
}
