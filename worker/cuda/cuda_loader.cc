#include "worker/cuda/cuda_loader.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr char kName[] = "libtrainyard_cuda.so";
constexpr char kOrUseCpu[] = ", or set resources.device to cpu";

}  // namespace

std::string DefaultCudaPluginPath() {
  const std::string folder = BinaryFolder();
  const std::string sibling = JoinPath(folder, kName), above = JoinPath(folder, absl::StrCat("../", kName));
  return !FileExists(sibling) && FileExists(above) ? above : sibling;
}

absl::StatusOr<CudaPlugin*> OpenCudaPlugin(const std::string& path, uint32_t abi) {
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " does not exist: this build has no GPU support. Run ./dev setup full "
                                            "and ./dev build, which creates it",
                                            kOrUseCpu));
  }
  // RTLD_LOCAL hides the library's symbols from other libraries. The library is never closed, because its registrations
  // in LibTorch would remain.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the GPU support cannot be loaded: ", dlerror(),
                     ". It needs the CUDA libraries of the full torch wheel: run ./dev setup full", kOrUseCpu));
  }
  auto* abi_of = reinterpret_cast<CudaPluginAbiFunction*>(dlsym(library, kCudaPluginAbiSymbol));
  auto* plugin_of = reinterpret_cast<CudaPluginFunction*>(dlsym(library, kCudaPluginSymbol));
  CudaPlugin* plugin = abi_of == nullptr || plugin_of == nullptr ? nullptr : plugin_of(abi);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     abi_of == nullptr ? " is not a GPU plugin of Trainyard"
                                       : absl::StrCat(" has interface ", abi_of(), ", but this trainer needs ", abi),
                     ": build the plugin and the trainer from the same tree (./dev build)", kOrUseCpu));
  }
  if (!at::globalContext().hasCUDART()) {
    return absl::InternalError(absl::StrCat(path,
                                            " was loaded too late: LibTorch had already decided that there is no CUDA. "
                                            "Report this as a bug",
                                            kOrUseCpu));
  }
  return plugin;
}

}  // namespace trainyard
