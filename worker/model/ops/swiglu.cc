#include "worker/model/ops/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/ops/row_lanes.h"

namespace trainyard {
namespace {

constexpr int64_t kSwiGluGrain = int64_t{1} << 14;  // fewer elements are not worth another thread

struct SwiGluPass {
  at::ScalarType type = at::kFloat;
  const void *gate = nullptr, *up = nullptr;
  void* y = nullptr;             // forward; null in backward
  const void* grad_y = nullptr;  // backward
  void *grad_gate = nullptr, *grad_up = nullptr;
};

// The logistic function, 0 where it is below the range of ExpLanes.
TRAINYARD_INLINE Floats LogisticLanes(Floats v) {
  const Floats lowest = AllLanes(-87.0f), highest = AllLanes(87.0f);
  const Floats negated = -v;
  const Floats above = negated < lowest ? lowest : negated;
  const Floats logistic = 1.0f / (1.0f + ExpLanes(above > highest ? highest : above));
  return negated > highest ? Floats{} : logistic;
}

template <typename T>
TRAINYARD_INLINE void SwiGluElements(const SwiGluPass& pass, int64_t first, int64_t last) {
  const T *gate = static_cast<const T*>(pass.gate), *up = static_cast<const T*>(pass.up);
  for (int64_t i = first; i < last; i += kLanes) {
    const int64_t size = LanesAt(i, last);
    const Floats v = LoadUpTo(gate + i, size), factor = LoadUpTo(up + i, size);
    const Floats logistic = LogisticLanes(v);
    const Floats silu = v * logistic;
    if (pass.y != nullptr) {
      StoreUpTo(silu * factor, static_cast<T*>(pass.y) + i, size);
      continue;
    }
    const Floats g = LoadUpTo(static_cast<const T*>(pass.grad_y) + i, size);
    StoreUpTo(g * factor * (logistic + silu * (1.0f - logistic)), static_cast<T*>(pass.grad_gate) + i, size);
    StoreUpTo(g * silu, static_cast<T*>(pass.grad_up) + i, size);
  }
}

TRAINYARD_INLINE void SwiGluEither(const SwiGluPass& pass, int64_t first, int64_t last) {
  pass.type == at::kFloat ? SwiGluElements<float>(pass, first, last) : SwiGluElements<uint16_t>(pass, first, last);
}

// The same loop, compiled for three kinds of CPU.
TRAINYARD_AVX512 void SwiGluAvx512(const SwiGluPass& pass, int64_t first, int64_t last) {
  SwiGluEither(pass, first, last);
}
TRAINYARD_AVX2 void SwiGluAvx2(const SwiGluPass& pass, int64_t first, int64_t last) { SwiGluEither(pass, first, last); }
void SwiGluAny(const SwiGluPass& pass, int64_t first, int64_t last) { SwiGluEither(pass, first, last); }

void RunSwiGlu(const SwiGluPass& pass, int64_t elements) {
  static const auto run = ForCpu(SwiGluAvx512, SwiGluAvx2, SwiGluAny);
  if (elements == 0) return;
  at::parallel_for(0, elements, kSwiGluGrain, [&](int64_t first, int64_t last) { run(pass, first, last); });
}

at::Tensor SwiGluForward(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = at::empty_like(gate);
  RunSwiGlu(
      {.type = gate.scalar_type(), .gate = gate.const_data_ptr(), .up = up.const_data_ptr(), .y = y.mutable_data_ptr()},
      gate.numel());
  return y;
}

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return SwiGluForward(gate, up);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor grad_y = gradients[0].contiguous();
    torch::autograd::tensor_list result = {at::empty_like(gate), at::empty_like(up)};
    RunSwiGlu({.type = gate.scalar_type(),
               .gate = gate.const_data_ptr(),
               .up = up.const_data_ptr(),
               .grad_y = grad_y.const_data_ptr(),
               .grad_gate = result[0].mutable_data_ptr(),
               .grad_up = result[1].mutable_data_ptr()},
              gate.numel());
    return result;
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  const bool ours = gate.is_cpu() && (gate.scalar_type() == at::kFloat || gate.scalar_type() == at::kBFloat16);
  if (!ours) return at::silu(gate) * up;
  const bool differentiates = gate.requires_grad() || up.requires_grad();
  if (!c10::GradMode::is_enabled() || !differentiates) return SwiGluForward(gate.contiguous(), up.contiguous());
  return SwiGluFunction::apply(gate.contiguous(), up.contiguous());
}

}  // namespace trainyard
