// What the launchers of our kernels share. Tensors of fp32, bf16 and fp16 have a kernel each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace trainyard {

struct KernelsByType {
  cudaKernel_t fp32 = nullptr, bf16 = nullptr, fp16 = nullptr;

  // Throws c10::Error if the type has no kernel.
  cudaKernel_t For(const at::Tensor& tensor) const {
    const at::ScalarType type = tensor.scalar_type();
    const cudaKernel_t kernel = type == at::kFloat      ? fp32
                                : type == at::kBFloat16 ? bf16
                                : type == at::kHalf     ? fp16
                                                        : nullptr;
    TORCH_CHECK(kernel != nullptr, "our kernels on a GPU support fp32, bf16 and fp16, not ", type);
    return kernel;
  }
};

// Finds NAME_fp32SUFFIX, NAME_bf16SUFFIX and NAME_fp16SUFFIX.
inline absl::Status FindKernels(cudaLibrary_t library, const char* name, const char* suffix, KernelsByType& kernels) {
  const std::array<std::pair<cudaKernel_t*, const char*>, 3> all{
      {{&kernels.fp32, "_fp32"}, {&kernels.bf16, "_bf16"}, {&kernels.fp16, "_fp16"}}};
  for (const auto& [kernel, type] : all) {
    const cudaError_t error = cudaLibraryGetKernel(kernel, library, absl::StrCat(name, type, suffix).c_str());
    if (error == cudaSuccess) continue;
    (void)cudaGetLastError();  // clears the error, which LibTorch would otherwise report at its next launch
    return absl::InternalError(cudaGetErrorString(error));
  }
  return absl::OkStatus();
}

// Launches on the current stream of the current device. `arguments` must have exactly the types of the kernel's
// parameters.
template <typename... Arguments>
void Launch(cudaKernel_t kernel, dim3 blocks, int64_t threads, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> addresses{&arguments...};
  C10_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, dim3(static_cast<unsigned>(threads)),
                                  addresses.data(), 0, c10::cuda::getCurrentCUDAStream().stream()));
}

inline bool IsAligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

}  // namespace trainyard
