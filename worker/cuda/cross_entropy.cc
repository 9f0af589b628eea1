#include "worker/cuda/cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/cuda/cross_entropy_kernel.h"

namespace trainyard {
namespace {

// The functions of NVRTC that are used. The library is never closed.
struct Nvrtc {
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) code_size = nullptr;
  decltype(&nvrtcGetCUBIN) code = nullptr;
};

absl::StatusOr<Nvrtc> OpenNvrtc() {
  // NVRTC opens this library by its name alone, so it is opened first, by the search path of this plugin.
  (void)dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_LOCAL);
  void* library = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  Nvrtc nvrtc;
  bool is_whole = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    is_whole = is_whole && function != nullptr;
  };
  find(nvrtc.create, "nvrtcCreateProgram");
  find(nvrtc.compile, "nvrtcCompileProgram");
  find(nvrtc.destroy, "nvrtcDestroyProgram");
  find(nvrtc.log_size, "nvrtcGetProgramLogSize");
  find(nvrtc.log, "nvrtcGetProgramLog");
  find(nvrtc.code_size, "nvrtcGetCUBINSize");
  find(nvrtc.code, "nvrtcGetCUBIN");
  if (!is_whole) return absl::UnavailableError("libnvrtc.so.13 lacks a function");
  return nvrtc;
}

std::string LogOf(const Nvrtc& nvrtc, nvrtcProgram program) {
  size_t size = 0;
  if (nvrtc.log_size(program, &size) != NVRTC_SUCCESS) return "";
  std::string log(size, '\0');
  if (nvrtc.log(program, log.data()) != NVRTC_SUCCESS) return "";
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

// By the type of the scores; set before the operator is registered, and never changed.
struct CrossEntropyKernels {
  cudaKernel_t fp32 = nullptr, bf16 = nullptr, fp16 = nullptr;
} cross_entropy_kernels;

at::Tensor CrossEntropyOnGpu(const at::Tensor& scores, const at::Tensor& targets, int64_t columns, double factor,
                             bool writes_gradients) {
  const cudaKernel_t kernel = scores.scalar_type() == at::kFloat      ? cross_entropy_kernels.fp32
                              : scores.scalar_type() == at::kBFloat16 ? cross_entropy_kernels.bf16
                              : scores.scalar_type() == at::kHalf     ? cross_entropy_kernels.fp16
                                                                      : nullptr;
  TORCH_CHECK(kernel != nullptr, "cross_entropy_ supports fp32, bf16 and fp16 on a GPU, not ", scores.scalar_type());
  TORCH_CHECK(scores.is_contiguous() && targets.is_contiguous() && targets.scalar_type() == at::kLong &&
                  scores.size(0) == targets.size(0) && scores.size(1) % 64 == 0 && columns <= scores.size(1),
              "cross_entropy_ needs dense scores [rows, a multiple of 64] and one int64 target per row");
  TORCH_CHECK(scores.device() == targets.device(), "cross_entropy_ needs scores and targets on the same GPU");
  const c10::cuda::CUDAGuard guard(scores.device());
  at::Tensor losses = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  if (scores.size(0) == 0) return losses;
  void* data = scores.data_ptr();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  float* loss = losses.mutable_data_ptr<float>();
  int64_t count = columns, stride = scores.size(1);
  float scale = static_cast<float>(factor);
  int writes = writes_gradients ? 1 : 0;
  std::array<void*, 7> arguments{&data, &target, &loss, &count, &stride, &scale, &writes};
  C10_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(scores.size(0))),
                                  dim3(kCrossEntropyThreads), arguments.data(), 0,
                                  c10::cuda::getCurrentCUDAStream().stream()));
  return losses;
}

absl::Status Load(int major, int minor) {
  ASSIGN_OR_RETURN(const std::vector<char> code, CompileCrossEntropy(major, minor));
  const auto check = [](cudaError_t error) {
    if (error == cudaSuccess) return absl::OkStatus();
    (void)cudaGetLastError();  // LibTorch would report it at its next launch
    return absl::InternalError(cudaGetErrorString(error));
  };
  cudaLibrary_t library = nullptr;  // never unloaded
  RETURN_IF_ERROR(check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0)));
  RETURN_IF_ERROR(check(cudaLibraryGetKernel(&cross_entropy_kernels.fp32, library, "cross_entropy_fp32")));
  RETURN_IF_ERROR(check(cudaLibraryGetKernel(&cross_entropy_kernels.bf16, library, "cross_entropy_bf16")));
  RETURN_IF_ERROR(check(cudaLibraryGetKernel(&cross_entropy_kernels.fp16, library, "cross_entropy_fp16")));
  static auto* operators =
      new torch::Library(torch::Library::IMPL, "trainyard", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  operators->impl("cross_entropy_", &CrossEntropyOnGpu);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<char>> CompileCrossEntropy(int major, int minor) {
  ASSIGN_OR_RETURN(const Nvrtc nvrtc, OpenNvrtc());
  nvrtcProgram program = nullptr;
  if (nvrtc.create(&program, kCrossEntropySource, "cross_entropy.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) {
    return absl::InternalError("NVRTC cannot create a program");
  }
  const absl::Cleanup destroy = [&] { nvrtc.destroy(&program); };
  const std::string architecture = absl::StrCat("--gpu-architecture=sm_", major, minor);
  const std::array<const char*, 2> options{architecture.c_str(), "--std=c++17"};
  const nvrtcResult result = nvrtc.compile(program, options.size(), options.data());
  if (result == NVRTC_ERROR_INVALID_OPTION) {
    return absl::InvalidArgumentError(absl::StrCat("NVRTC does not support ", architecture));
  }
  if (result != NVRTC_SUCCESS) return absl::InternalError(absl::StrCat("NVRTC: ", LogOf(nvrtc, program)));
  size_t size = 0;
  if (nvrtc.code_size(program, &size) != NVRTC_SUCCESS) return absl::InternalError("NVRTC returned no machine code");
  std::vector<char> code(size);
  if (nvrtc.code(program, code.data()) != NVRTC_SUCCESS) return absl::InternalError("NVRTC returned no machine code");
  return code;
}

absl::Status LoadCrossEntropy(int major, int minor) {
  static const std::pair<int, int> loaded(major, minor);
  static const auto* status = new absl::Status(Load(major, minor));
  if (loaded != std::pair(major, minor)) {
    return absl::FailedPreconditionError("the kernels of this process are compiled for another kind of GPU");
  }
  return *status;
}

}  // namespace trainyard
