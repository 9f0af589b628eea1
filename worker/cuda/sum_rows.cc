#include "worker/cuda/sum_rows.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "common/status_macros.h"
#include "worker/cuda/kernel_launch.h"
#include "worker/cuda/sum_rows_kernel.h"

namespace trainyard {
namespace {

// Set before the operator is registered, and never changed.
KernelsByType sum_rows_kernels;

at::Tensor SumRowsOnGpu(const at::Tensor& rows) {
  const cudaKernel_t kernel = sum_rows_kernels.For(rows);
  const int64_t count = rows.size(0), columns = rows.size(1), pack = 16 / rows.element_size();
  TORCH_CHECK(rows.is_contiguous() && IsAligned(rows) && columns % pack == 0 && columns < (int64_t{1} << 31),
              "sum_rows needs a dense matrix whose rows are multiples of 16 bytes");
  const c10::cuda::CUDAGuard guard(rows.device());
  // A block covers 32 packs of columns (a pack has 16 bytes) and adds groups of 8 rows, one row for each of its warps.
  // Eight blocks use a whole multiprocessor.
  const int64_t multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount,
                groups_of_columns = (columns / pack + 31) / 32,
                groups_of_rows =
                    std::clamp<int64_t>(8 * multiprocessors / groups_of_columns, 1, std::max<int64_t>(1, count / 8));
  at::Tensor sums = at::empty({groups_of_rows, columns}, rows.options().dtype(at::kFloat));
  Launch(kernel, dim3(static_cast<unsigned>(groups_of_columns), static_cast<unsigned>(groups_of_rows)), kSumRowsThreads,
         rows.const_data_ptr(), sums.mutable_data_ptr<float>(), count, static_cast<int>(columns));
  return sums;
}

}  // namespace

absl::Status RegisterSumRows(cudaLibrary_t library) {
  RETURN_IF_ERROR(FindKernels(library, "sum_rows", "", sum_rows_kernels));
  static auto* operators =
      new torch::Library(torch::Library::IMPL, "trainyard", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  operators->impl("sum_rows", &SumRowsOnGpu);
  return absl::OkStatus();
}

}  // namespace trainyard
