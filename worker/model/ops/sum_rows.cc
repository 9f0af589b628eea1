#include "worker/model/ops/sum_rows.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>

namespace trainyard {
namespace {

// With fewer rows, LibTorch's sum alone is as fast as this operator followed by LibTorch's sum of its result.
constexpr int64_t kMinRows = 4096;

// The CUDA plugin (worker/cuda) implements this operator. No other device has an implementation.
TORCH_LIBRARY_FRAGMENT(trainyard, library) { library.def("sum_rows(Tensor rows) -> Tensor"); }

}  // namespace

at::Tensor WithFewerRows(const at::Tensor& rows) {
  if (!rows.is_cuda() || rows.dim() != 2 || rows.size(0) < kMinRows || !rows.is_contiguous()) return rows;
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("trainyard::sum_rows", "").typed<at::Tensor(const at::Tensor&)>();
  const at::ScalarType type = rows.scalar_type();
  const bool has_kernel = (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
                          rows.size(1) * static_cast<int64_t>(rows.element_size()) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 &&
                          operation.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  return has_kernel ? operation.call(rows) : rows;
}

}  // namespace trainyard
