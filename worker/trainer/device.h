// The device of a rank: the CPU, or a GPU of its host. Chosen before anything else of a rank is created, because
// CUDA must be loaded before the process's first tensor operation.
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
  CudaPlugin* cuda = nullptr;  // null on a CPU; valid as long as the process runs
  CudaDevice gpu = {};         // on a GPU
  int num_gpus = 0;            // on a GPU: the number of GPUs that this process sees
};

// The GPU of rank `local_rank` on a host with `num_devices`: GPUs are assigned round robin, so several ranks share a
// GPU if there are more ranks than GPUs.
int DeviceOfLocalRank(int local_rank, int num_devices);

// Possible errors: those of opening the GPU support and of choosing a device, with the host's name. IsGpuMissing holds
// for those that last until an operator has repaired the host.
absl::StatusOr<RankDevice> ChooseDevice(const StartOrder& order);

// Returns whether the only problem is that this host has no GPU support or no GPU that works; another host may.
bool IsGpuMissing(const absl::Status& status);
absl::Status GpuMissing(absl::Status status);  // makes IsGpuMissing true for the error

// Why the rank is slower than it could be, one sentence per reason, for its log. Empty on a CPU.
std::vector<std::string> WhySlow(const StartOrder& order, const RankDevice& device);

// Possible errors: FailedPrecondition for a type that the GPU does not support; Unimplemented for what the optimizer
// cannot do on a GPU.
absl::Status CheckPrecision(const RankDevice& device, const Precision& precision);

// How process groups handle tensors on the device; unset on a CPU. `store` as in GroupOptions.
std::optional<GroupDevice> GroupDeviceOf(const RankDevice& device, KeyValueStore* store, absl::Duration timeout);

// The memory that the ledger accounts for; on a GPU with the activations, which the ledger cannot see.
std::vector<KindUse> UseOf(const Ledger& ledger, const RankDevice& device);
// Adds the memory of tensors on a GPU that `uses` does not account for. The peak is approximate, because the memory in
// `uses` may have been different when the peak was reached.
void CountActivations(const CudaMemory& memory, std::vector<KindUse>& uses);

// "GPU memory: 1.20 GB used at most, 1.50 GB reserved at most, of 143.8 GB"; empty on a CPU.
std::string MemoryText(const RankDevice& device);

}  // namespace trainyard
