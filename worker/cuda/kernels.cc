#include "worker/cuda/kernels.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/cuda/cross_entropy.h"
#include "worker/cuda/cross_entropy_kernel.h"
#include "worker/cuda/kernel_prelude.h"
#include "worker/cuda/norm.h"
#include "worker/cuda/norm_kernel.h"
#include "worker/cuda/nvrtc.h"
#include "worker/cuda/sum_rows.h"
#include "worker/cuda/sum_rows_kernel.h"

namespace trainyard {
namespace {

absl::StatusOr<std::vector<char>> Compile(int major, int minor) {
  return CompileCuda(absl::StrCat(kKernelPrelude, kCrossEntropySource, kSumRowsSource, kNormSource), major, minor);
}

absl::Status Load(int major, int minor) {
  ASSIGN_OR_RETURN(const std::vector<char> code, Compile(major, minor));
  cudaLibrary_t library = nullptr;  // never unloaded
  const cudaError_t error = cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // clears the error, which LibTorch would report at its next launch
    return absl::InternalError(cudaGetErrorString(error));
  }
  RETURN_IF_ERROR(RegisterCrossEntropy(library));
  RETURN_IF_ERROR(RegisterSumRows(library));
  return RegisterNorm(library);
}

}  // namespace

absl::Status CompileKernels(int major, int minor) { return Compile(major, minor).status(); }

absl::Status LoadKernels(int major, int minor) {
  static const std::pair<int, int> loaded(major, minor);
  static const auto* status = new absl::Status(Load(major, minor));
  if (loaded != std::pair(major, minor)) {
    return absl::FailedPreconditionError("the kernels of this process are compiled for another kind of GPU");
  }
  return *status;
}

}  // namespace trainyard
