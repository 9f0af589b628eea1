// Where a rank computes: the CPU, or a GPU of its host. Chosen before anything else of a rank is made, because LibTorch
// must know of CUDA before the process' first tensor operation.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/group.h"
#include "worker/cuda/cuda_plugin.h"
#include "worker/diagnostics/ledger.h"
#include "worker/link/config.h"
#include "worker/numerics/precision.h"

namespace trainyard {

struct RankDevice {
  at::Device device = at::kCPU;
  CudaPlugin* cuda = nullptr;  // null on a CPU; lives as long as the process
  CudaDevice gpu = {};         // on a GPU
};

// The GPU of rank `local_rank` of a host with `num_devices`: they are dealt in turn, so that more ranks than GPUs share
// them.
int DeviceOfLocalRank(int local_rank, int num_devices);

// Possible errors: those of opening the GPU support and of choosing a device, with the host's name.
absl::StatusOr<RankDevice> ChooseDevice(const StartOrder& order);

// Possible errors: FailedPrecondition for a type that the GPU has not; Unimplemented for what the optimizer cannot do
// there.
absl::Status CheckPrecision(const RankDevice& device, const Precision& precision);

// How groups talk of tensors on the device; unset on a CPU. `store` as in GroupOptions.
std::optional<GroupDevice> GroupDeviceOf(const RankDevice& device, KeyValueStore* store, absl::Duration timeout);

// What the ledger tells; on a GPU with the activations there, which the ledger has no way to see.
std::vector<KindUse> UseOf(const Ledger& ledger, const RankDevice& device);
// All that tensors have of a GPU and `uses` does not account for. At most: where nothing else was as it is now.
void CountActivations(const CudaMemory& memory, std::vector<KindUse>& uses);

// "GPU memory: 1.2 GB used at most, 1.5 GB reserved at most, of 143.8 GB"; empty on a CPU.
std::string MemoryText(const RankDevice& device);

}  // namespace trainyard
