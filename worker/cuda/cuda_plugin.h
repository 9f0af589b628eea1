// The interface of libtrainyard_cuda.so: the parts of CUDA and NCCL that LibTorch's device-neutral interfaces do not
// cover. The library is loaded at run time (cuda_loader.h), so that one trainer works on hosts with and without a GPU.
// Loading it also loads LibTorch's CUDA kernels, after which tensors may be on a GPU.
//
//   ASSIGN_OR_RETURN(CudaPlugin * cuda, OpenCudaPlugin(DefaultCudaPluginPath()));
//   ASSIGN_OR_RETURN(CudaDevice device, cuda->Use(local_rank));
//   at::Tensor x = at::empty({8}, at::Device(at::kCUDA, device.index));
//
// This is a plain C++ interface between two binaries: both must be built by the same compiler against the same
// LibTorch. kCudaPluginAbi identifies the interface and the version of LibTorch; the loader refuses a library with
// another value. Increment kCudaInterface whenever this file, or a header that it includes, changes.
//
// Threads: any thread at any time, unless stated otherwise.
#pragma once

#include <torch/headeronly/version.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

inline constexpr uint32_t kCudaInterface = 3;
// 3021100: interface 3 with LibTorch 2.11.0.
inline constexpr uint32_t kCudaPluginAbi =
    kCudaInterface * 1000000 + TORCH_VERSION_MAJOR * 10000 + TORCH_VERSION_MINOR * 100 + TORCH_VERSION_PATCH;

struct CudaDevice {
  int index = 0;             // among the devices that this process sees
  std::string name = "";     // "NVIDIA H200"
  std::string uuid = "";     // the same in every process that uses this device; unique across all devices
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  // Why LibTorch's slower kernels are used instead of ours; empty if they are not.
  std::string slow_kernels_reason = "";
};

// Memory of this process as LibTorch's caching allocator counts it; peaks are since the process started.
struct CudaMemory {
  int64_t used_bytes = 0, used_peak_bytes = 0;          // by tensors
  int64_t reserved_bytes = 0, reserved_peak_bytes = 0;  // obtained from the device
  int64_t num_retries = 0;  // allocations that first had to return reserved memory to the device
};

struct NcclOptions {
  int rank = 0;
  int world_size = 1;
  int device = 0;  // the device of this process; no other rank of the group may use the same
  // Not owned; used inside NewNccl and until the first operation has ended. May be null in a world of 1.
  KeyValueStore* store = nullptr;
  std::string prefix = "world/";  // prefix of every name in the store; each communicator needs its own
  absl::Duration timeout = absl::Minutes(30);
};

class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  // The number of GPUs that this process may use; at least 1. Possible errors: FailedPrecondition if there is none;
  // the message says what is missing and what to do.
  virtual absl::StatusOr<int> NumDevices() = 0;

  // Makes `index` the device of the calling thread, which must be the loop's, and loads the kernels that LibTorch
  // lacks. Possible errors: those of NumDevices; InvalidArgument if the index is too high; Internal with CUDA's
  // message.
  virtual absl::StatusOr<CudaDevice> Use(int index) = 0;

  // Compiles the kernels that LibTorch lacks, as Use does; needs no GPU. Possible errors: Unavailable if NVRTC cannot
  // be loaded; InvalidArgument for a compute capability that it does not know; Internal with its log.
  virtual absl::Status CompileKernels(int major, int minor) = 0;

  // Creates a communicator for tensors on one device per rank. Wait makes the current stream, and not the host, wait
  // for the operation. A failure after Wait has returned is reported by a later operation, so the results of the step
  // must then be discarded. Operations of one communicator run on one stream, in the order in which they were started.
  // MonitoredBarrier does not name missing ranks. Possible errors: those of NewGlooCommunicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(const NcclOptions& options) = 0;

  virtual CudaMemory MemoryOf(int index) = 0;
};

// The functions that the library exports. The second returns null unless `abi` is the library's own.
using CudaPluginAbiFunction = uint32_t();
using CudaPluginFunction = CudaPlugin*(uint32_t abi);
inline constexpr char kCudaPluginAbiSymbol[] = "trainyard_cuda_plugin_abi";
inline constexpr char kCudaPluginSymbol[] = "trainyard_cuda_plugin";

}  // namespace trainyard
