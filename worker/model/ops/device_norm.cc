#include "worker/model/ops/device_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace trainyard {
namespace {

constexpr int64_t kMaxRowBytes = 16'384;

// The CUDA plugin (worker/cuda) implements both operators. No other device has an implementation.
TORCH_LIBRARY_FRAGMENT(trainyard, library) {
  library.def("norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor, Tensor)");
  library.def(
      "norm_backward(Tensor x, Tensor weight, Tensor statistics, Tensor grad_y, Tensor? grad_residual, bool needs_x) "
      "-> (Tensor, Tensor)");
}

using Outputs = std::tuple<at::Tensor, at::Tensor>;
using Norm = Outputs(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double);
using NormBackward = Outputs(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const std::optional<at::Tensor>&, bool);

template <typename Function>
const c10::TypedOperatorHandle<Function>& Operation(const char* name) {
  static const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
  return operation;
}

std::optional<at::Tensor> OrNone(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

bool HasDeviceNorm(const at::Tensor& x) {
  if (!x.is_cuda() || x.dim() == 0 || x.numel() == 0 || !x.is_contiguous()) return false;
  const at::ScalarType type = x.scalar_type();
  const int64_t row_bytes = x.size(-1) * static_cast<int64_t>(x.element_size());
  return (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) && row_bytes % 16 == 0 &&
         row_bytes <= kMaxRowBytes && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
         Operation<Norm>("trainyard::norm").hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

DeviceNorm RunDeviceNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  auto [y, statistics] = Operation<Norm>("trainyard::norm").call(x, weight, OrNone(bias), eps);
  return {y, statistics};
}

DeviceNormGradients RunDeviceNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                                          const at::Tensor& grad_y, const at::Tensor& grad_residual, bool needs_x) {
  auto [grad_x, parameters] = Operation<NormBackward>("trainyard::norm_backward")
                                  .call(x, weight, statistics, grad_y, OrNone(grad_residual), needs_x);
  return {grad_x, parameters};
}

}  // namespace trainyard
