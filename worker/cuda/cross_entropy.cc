#include "worker/cuda/cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "common/status_macros.h"
#include "worker/cuda/cross_entropy_kernel.h"
#include "worker/cuda/kernel_launch.h"

namespace trainyard {
namespace {

// Set before the operator is registered, and never changed.
KernelsByType cross_entropy_kernels;

at::Tensor CrossEntropyOnGpu(const at::Tensor& scores, const at::Tensor& targets, int64_t columns, double factor,
                             bool writes_gradients) {
  const cudaKernel_t kernel = cross_entropy_kernels.For(scores);
  TORCH_CHECK(scores.is_contiguous() && IsAligned(scores) && targets.is_contiguous() &&
                  targets.scalar_type() == at::kLong && scores.size(0) == targets.size(0) && scores.size(1) % 64 == 0 &&
                  columns <= scores.size(1),
              "cross_entropy_ needs dense scores [rows, a multiple of 64] aligned to 16 bytes, one int64 target per "
              "row, and at most as many columns as scores has");
  TORCH_CHECK(scores.device() == targets.device(), "cross_entropy_ needs scores and targets on the same GPU");
  const c10::cuda::CUDAGuard guard(scores.device());
  at::Tensor losses = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  if (scores.size(0) == 0) return losses;
  Launch(kernel, dim3(static_cast<unsigned>(scores.size(0))), kCrossEntropyThreads, scores.data_ptr(),
         targets.const_data_ptr<int64_t>(), losses.mutable_data_ptr<float>(), columns, scores.size(1),
         static_cast<float>(factor), writes_gradients ? 1 : 0);
  return losses;
}

}  // namespace

absl::Status RegisterCrossEntropy(cudaLibrary_t library) {
  RETURN_IF_ERROR(FindKernels(library, "cross_entropy", "", cross_entropy_kernels));
  static auto* operators =
      new torch::Library(torch::Library::IMPL, "trainyard", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  operators->impl("cross_entropy_", &CrossEntropyOnGpu);
  return absl::OkStatus();
}

}  // namespace trainyard
