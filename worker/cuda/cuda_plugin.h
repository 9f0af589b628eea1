// What libtrainyard_cuda.so offers the trainer: all of CUDA and NCCL that LibTorch's device-neutral interfaces do not
// give. The library is opened at run time (cuda_loader.h), so that one trainer serves hosts with a GPU and without;
// opening it also brings LibTorch's CUDA kernels into the process, after which tensors may live on a GPU.
//
//   ASSIGN_OR_RETURN(CudaPlugin * cuda, OpenCudaPlugin(DefaultCudaPluginPath()));
//   ASSIGN_OR_RETURN(CudaDevice device, cuda->Use(local_rank));
//   at::Tensor x = at::empty({8}, at::Device(at::kCUDA, device.index));
//
// Plain C++ between two binaries: both must be made by one compiler against one LibTorch, which kCudaPluginAbi stands
// for; the loader refuses any other. Bump kCudaInterface whenever this file, or a header it includes, changes.
//
// Threads: any, at any time, unless said otherwise.
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

inline constexpr uint32_t kCudaInterface = 1;
// 1021100: interface 1 with LibTorch 2.11.0.
inline constexpr uint32_t kCudaPluginAbi =
    kCudaInterface * 1000000 + TORCH_VERSION_MAJOR * 10000 + TORCH_VERSION_MINOR * 100 + TORCH_VERSION_PATCH;

struct CudaDevice {
  int index = 0;             // of those this process sees
  std::string name = "";     // "NVIDIA H200"
  std::string uuid = "";     // the same for every process that uses this device, another for any other device anywhere
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
};

// Of this process, as LibTorch's caching allocator counts it; peaks are since its start.
struct CudaMemory {
  int64_t used_bytes = 0, used_peak_bytes = 0;          // by tensors
  int64_t reserved_bytes = 0, reserved_peak_bytes = 0;  // taken from the device
  int64_t num_retries = 0;                              // allocations that had to give back what was reserved first
};

struct NcclOptions {
  int rank = 0;
  int world_size = 1;
  int device = 0;  // that this process uses; no other rank of the group may use the same
  // Not owned; asked only inside NewNccl and until the first operation has ended. May be null in a world of 1.
  KeyValueStore* store = nullptr;
  std::string prefix = "world/";  // goes before every name in the store: one a communicator
  absl::Duration timeout = absl::Minutes(30);
};

class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  // How many GPUs this process may use; at least 1. Possible errors: FailedPrecondition where there is none, which says
  // what is missing and what to do.
  virtual absl::StatusOr<int> NumDevices() = 0;

  // Makes `index` the device of the calling thread, which is the loop's. Possible errors: those of NumDevices;
  // InvalidArgument for an index that is too high; Internal, what CUDA says.
  virtual absl::StatusOr<CudaDevice> Use(int index) = 0;

  // A communicator of tensors on one device per rank. A Wait orders the current stream behind the operation and not the
  // host; what fails afterwards is told by a later operation, and nothing of such a step may be kept. Operations of one
  // communicator share a stream, in the order started. Meet does not say who is missing. Possible errors: those of
  // NewGlooCommunicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(const NcclOptions& options) = 0;

  virtual CudaMemory MemoryOf(int index) = 0;
};

// What the library exports. The second answers null unless `abi` is its own.
using CudaPluginAbiFunction = uint32_t();
using CudaPluginFunction = CudaPlugin*(uint32_t abi);
inline constexpr char kCudaPluginAbiSymbol[] = "trainyard_cuda_plugin_abi";
inline constexpr char kCudaPluginSymbol[] = "trainyard_cuda_plugin";

}  // namespace trainyard
