// Finds GPUs through NVIDIA's management library, which is opened at run time, so that the same daemon runs on hosts
// without it. Only the functions that are called are declared here; their interface is stable since version 2.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "worker/agent/inventory.h"

namespace trainyard::agent {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr char kDriver[] = "libcuda.so.1";
constexpr char kPlugin[] = "libtrainyard_cuda.so";
constexpr char kVisibleDevices[] = "CUDA_VISIBLE_DEVICES";
constexpr int kSuccess = 0;
constexpr unsigned kTextBytes = 96;

using Device = struct NvmlDevice*;
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*device)(unsigned, Device*);
  int (*name)(Device, char*, unsigned);
  int (*uuid)(Device, char*, unsigned);
  int (*memory)(Device, Memory*);
  int (*capability)(Device, int*, int*);  // null: the driver is too old to have it
  const char* (*error_text)(int);
};

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool LoadAll(void* library, Nvml* nvml) {
  Load(library, "nvmlDeviceGetCudaComputeCapability", &nvml->capability);
  return Load(library, "nvmlInit_v2", &nvml->init) && Load(library, "nvmlShutdown", &nvml->shutdown) &&
         Load(library, "nvmlDeviceGetCount_v2", &nvml->count) &&
         Load(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->device) &&
         Load(library, "nvmlDeviceGetName", &nvml->name) && Load(library, "nvmlDeviceGetUUID", &nvml->uuid) &&
         Load(library, "nvmlDeviceGetMemoryInfo", &nvml->memory) && Load(library, "nvmlErrorString", &nvml->error_text);
}

// The CUDA version of the pinned LibTorch: a driver of an older major version does not support it.
constexpr int kCudaMajor = 13;

// Returns the GPU that an entry of CUDA_VISIBLE_DEVICES names; null if it names none or several.
const v1::Gpu* FindGpu(const google::protobuf::RepeatedPtrField<v1::Gpu>& gpus, absl::string_view entry) {
  uint32_t index = 0;
  const bool is_index = absl::SimpleAtoi(entry, &index);
  if (!is_index && !absl::StartsWith(entry, "GPU-")) return nullptr;
  const v1::Gpu* found = nullptr;
  for (const v1::Gpu& gpu : gpus) {
    const bool matches = is_index ? gpu.index() == index : absl::StartsWith(gpu.uuid(), entry);
    if (!matches) continue;
    if (found != nullptr) return nullptr;
    found = &gpu;
  }
  return found;
}

}  // namespace

google::protobuf::RepeatedPtrField<v1::Gpu> VisibleGpus(const google::protobuf::RepeatedPtrField<v1::Gpu>& gpus,
                                                        absl::string_view visible) {
  if (absl::StrContains(visible, "MIG-")) return gpus;
  google::protobuf::RepeatedPtrField<v1::Gpu> listed;
  for (absl::string_view entry : absl::StrSplit(visible, ',', absl::SkipEmpty())) {
    const v1::Gpu* gpu = FindGpu(gpus, absl::StripAsciiWhitespace(entry));
    const auto is_same = [gpu](const v1::Gpu& before) { return before.index() == gpu->index(); };
    if (gpu == nullptr || std::any_of(listed.begin(), listed.end(), is_same)) break;
    *listed.Add() = *gpu;
  }
  return listed;
}

std::string CudaNote(const std::string& binaries) {
  if (!FileExists(JoinPath(binaries, kPlugin))) return absl::StrCat(kPlugin, " is not next to the trainer");
  void* driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);  // never closed: once initialized it must stay loaded
  if (driver == nullptr) return absl::StrCat(kDriver, " not found");
  int (*init)(unsigned) = nullptr;
  int (*version_of)(int*) = nullptr;
  if (!Load(driver, "cuInit", &init) || !Load(driver, "cuDriverGetVersion", &version_of)) {
    return absl::StrCat(kDriver, " lacks a function that Trainyard needs");
  }
  int version = 0;  // 13000 for CUDA 13.0
  if (version_of(&version) == kSuccess && version / 1000 < kCudaMajor) {
    return absl::StrCat("the driver is for CUDA ", version / 1000, ".", version % 1000 / 10, ", trainers need ",
                        kCudaMajor, " or later");
  }
  const int error = init(0);
  return error == kSuccess ? "" : absl::StrCat("cuInit returned error ", error);
}

GpuDriver ReadGpuDriver() {
  GpuDriver driver;
  void* management = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (management != nullptr) {
    absl::Cleanup close = [management] { dlclose(management); };
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*version)(char*, unsigned) = nullptr;
    char text[kTextBytes] = {};
    if (Load(management, "nvmlInit_v2", &init) && Load(management, "nvmlShutdown", &shutdown) &&
        Load(management, "nvmlSystemGetDriverVersion", &version) && init() == kSuccess) {
      if (version(text, kTextBytes) == kSuccess) driver.version = ValidUtf8(text, kTextBytes);
      shutdown();
    }
  }
  // cuDriverGetVersion works without cuInit, so the driver is not initialized here.
  void* library = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  int (*version_of)(int*) = nullptr;
  int version = 0;
  if (library != nullptr && Load(library, "cuDriverGetVersion", &version_of) && version_of(&version) == kSuccess) {
    driver.cuda = absl::StrCat(version / 1000, ".", version % 1000 / 10);
  }
  return driver;
}

void AddGpus(v1::Inventory* inventory) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    inventory->set_gpu_note(absl::StrCat(kLibrary, " not found"));
    return;
  }
  absl::Cleanup close = [library] { dlclose(library); };
  Nvml nvml;
  if (!LoadAll(library, &nvml)) {
    inventory->set_gpu_note(absl::StrCat(kLibrary, " lacks a function that Trainyard needs"));
    return;
  }
  if (int error = nvml.init(); error != kSuccess) {
    inventory->set_gpu_note(ValidUtf8(absl::StrCat("nvmlInit: ", nvml.error_text(error)), 256));
    return;
  }
  absl::Cleanup shutdown = [&nvml] { nvml.shutdown(); };
  unsigned count = 0;
  nvml.count(&count);
  for (unsigned index = 0; index < count; ++index) {
    Device device;
    char name[kTextBytes] = {};
    char uuid[kTextBytes] = {};
    Memory memory = {};
    if (nvml.device(index, &device) != kSuccess) continue;
    nvml.name(device, name, kTextBytes);
    nvml.uuid(device, uuid, kTextBytes);
    nvml.memory(device, &memory);
    v1::Gpu* gpu = inventory->add_gpus();
    gpu->set_index(index);
    gpu->set_name(ValidUtf8(name, kTextBytes));
    gpu->set_uuid(ValidUtf8(uuid, kTextBytes));
    gpu->set_memory_bytes(memory.total);
    int major = 0, minor = 0;
    if (nvml.capability != nullptr && nvml.capability(device, &major, &minor) == kSuccess) {
      gpu->set_compute_major(static_cast<uint32_t>(major));
    }
  }
  const bool found_any = !inventory->gpus().empty();
  if (const char* visible = getenv(kVisibleDevices); visible != nullptr) {
    *inventory->mutable_gpus() = VisibleGpus(inventory->gpus(), visible);
  }
  if (!found_any) {
    inventory->set_gpu_note("the driver found no GPU");
  } else if (inventory->gpus().empty()) {
    inventory->set_gpu_note(absl::StrCat(kVisibleDevices, ", which trainers inherit, names no GPU of this host"));
  } else {
    inventory->set_cuda_note(CudaNote(BinaryFolder()));
  }
}

}  // namespace trainyard::agent
