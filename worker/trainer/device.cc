#include "worker/trainer/device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/cuda/cuda_loader.h"

namespace trainyard {
namespace {

// The first compute capability whose matrix units support bf16.
constexpr int kBfloat16Major = 8;
constexpr char kNoGpuUrl[] = "trainyard/gpu_missing";

absl::StatusOr<RankDevice> UseGpu(const StartOrder& order) {
  ASSIGN_OR_RETURN(CudaPlugin * cuda, OpenCudaPlugin(DefaultCudaPluginPath()));
  ASSIGN_OR_RETURN(const int num_devices, cuda->NumDevices());
  ASSIGN_OR_RETURN(CudaDevice gpu, cuda->Use(DeviceOfLocalRank(order.local_rank, num_devices)));
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu.index));
  return RankDevice{.device = device, .cuda = cuda, .gpu = std::move(gpu), .num_gpus = num_devices};
}

}  // namespace

int DeviceOfLocalRank(int local_rank, int num_devices) { return local_rank % num_devices; }

absl::StatusOr<RankDevice> ChooseDevice(const StartOrder& order) {
  if (order.config.device == TrainConfig::Device::kCpu) return RankDevice();
  absl::StatusOr<RankDevice> device = UseGpu(order);
  const bool lasts = absl::IsNotFound(device.status()) || absl::IsFailedPrecondition(device.status());
  if (lasts) device = GpuMissing(device.status());
  RETURN_IF_ERROR(device.status()) << "resources.device is cuda on host " << order.host;
  return device;
}

absl::Status GpuMissing(absl::Status status) {
  status.SetPayload(kNoGpuUrl, absl::Cord());
  return status;
}

bool IsGpuMissing(const absl::Status& status) { return status.GetPayload(kNoGpuUrl).has_value(); }

std::vector<std::string> WhySlow(const StartOrder& order, const RankDevice& device) {
  std::vector<std::string> reasons;
  if (device.cuda == nullptr) return reasons;
  if (const std::string& reason = device.gpu.slow_kernels_reason; !reason.empty()) {
    reasons.push_back(
        absl::StrCat("LibTorch's kernels compute losses, norms and sums, more slowly than ours: ", reason));
  }
  // One rank reports for all ranks of its host.
  if (order.local_rank == 0 && order.local_world_size > device.num_gpus) {
    reasons.push_back(absl::StrCat("the ", order.local_world_size, " ranks on host ", order.host, " share ",
                                   Plural(static_cast<uint64_t>(device.num_gpus), "GPU"),
                                   ", because CUDA finds no more there; their tensors travel through host memory. If "
                                   "the host has more GPUs, look for a failed one with nvidia-smi"));
  }
  return reasons;
}

absl::Status CheckPrecision(const RankDevice& device, const Precision& precision) {
  if (device.cuda == nullptr) return absl::OkStatus();
  for (at::ScalarType type : {precision.param, precision.reduce}) {
    if (type != at::kBFloat16 || device.gpu.major >= kBfloat16Major) continue;
    return absl::FailedPreconditionError(absl::StrCat("train.precision has bf16, which ", device.gpu.name,
                                                      " (compute capability ", device.gpu.major, ".", device.gpu.minor,
                                                      ") does not compute in; choose fp16 or fp32"));
  }
  if (precision.state != precision.master || precision.rounds_stochastically()) {
    return absl::UnimplementedError(
        absl::StrCat("train.precision is ", precision.ToString(),
                     ": on a GPU, masters and state must have the same type, fp32 or fp64, in this version; "
                     "choose master and state fp32, or resources.device cpu"));
  }
  return absl::OkStatus();
}

std::optional<GroupDevice> GroupDeviceOf(const RankDevice& device, KeyValueStore* store, absl::Duration timeout) {
  if (device.cuda == nullptr) return std::nullopt;
  return GroupDevice{
      .device = device.device,
      .name = device.gpu.uuid,
      .join = [cuda = device.cuda, index = device.gpu.index, store, timeout](int rank, int size,
                                                                             const std::string& prefix) {
        return cuda->NewNccl(
            {.rank = rank, .world_size = size, .device = index, .store = store, .prefix = prefix, .timeout = timeout});
      }};
}

std::vector<KindUse> UseOf(const Ledger& ledger, const RankDevice& device) {
  std::vector<KindUse> uses = ledger.Read();
  if (device.cuda != nullptr) CountActivations(device.cuda->MemoryOf(device.gpu.index), uses);
  return uses;
}

void CountActivations(const CudaMemory& memory, std::vector<KindUse>& uses) {
  const auto is_on_host = [](MemoryKind kind) { return kind == MemoryKind::kHost || kind == MemoryKind::kSnapshots; };
  int64_t other_bytes = 0;
  for (const KindUse& use : uses) {
    if (!is_on_host(use.kind) && use.kind != MemoryKind::kActivations) other_bytes += use.bytes;
  }
  for (KindUse& use : uses) {
    if (use.kind != MemoryKind::kActivations) continue;
    use.bytes = std::max<int64_t>(memory.used_bytes - other_bytes, 0);
    use.peak_bytes = std::max(memory.used_peak_bytes - other_bytes, use.bytes);
  }
}

std::string MemoryText(const RankDevice& device) {
  if (device.cuda == nullptr) return "";
  const CudaMemory memory = device.cuda->MemoryOf(device.gpu.index);
  const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  std::string text =
      absl::StrFormat("GPU memory: %.2f GB used at most, %.2f GB reserved at most, of %.1f GB",
                      gb(memory.used_peak_bytes), gb(memory.reserved_peak_bytes), gb(device.gpu.memory_bytes));
  if (memory.num_retries > 0) absl::StrAppend(&text, "; allocations were retried ", memory.num_retries, " times");
  return text;
}

}  // namespace trainyard
