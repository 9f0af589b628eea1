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
  const std::string beside = JoinPath(folder, kName), above = JoinPath(folder, absl::StrCat("../", kName));
  return !FileExists(beside) && FileExists(above) ? above : beside;
}

absl::StatusOr<CudaPlugin*> OpenCudaPlugin(const std::string& path, uint32_t abi) {
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " is not there: this build has no GPU support. Run ./dev setup full "
                                            "and ./dev build, which makes it",
                                            kOrUseCpu));
  }
  // Local: nothing else is to find its symbols. It is never closed: what LibTorch has registered would stay behind.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the GPU support cannot be loaded: ", dlerror(),
        ". It needs the CUDA libraries that the whole torch wheel brings: run ./dev setup full", kOrUseCpu));
  }
  auto* abi_of = reinterpret_cast<CudaPluginAbiFunction*>(dlsym(library, kCudaPluginAbiSymbol));
  auto* plugin_of = reinterpret_cast<CudaPluginFunction*>(dlsym(library, kCudaPluginSymbol));
  CudaPlugin* plugin = abi_of == nullptr || plugin_of == nullptr ? nullptr : plugin_of(abi);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, abi_of == nullptr ? " is no GPU support of Trainyard's" : " has interface ",
                     abi_of == nullptr ? "" : absl::StrCat(abi_of()), ", and this trainer wants ", abi,
                     ": build both from one tree (./dev build)", kOrUseCpu));
  }
  if (!at::globalContext().hasCUDART()) {
    return absl::InternalError(absl::StrCat(path, " was opened after LibTorch had decided that there is no CUDA"));
  }
  return plugin;
}

}  // namespace trainyard
