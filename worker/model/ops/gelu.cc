#include "worker/model/ops/gelu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/numerics/vector_loops.h"

namespace trainyard {
namespace {

constexpr int64_t kGrain = int64_t{1} << 14;  // fewer elements are not worth another thread

// Rows [first, last) of `columns` elements; `bias` and `slope` may be null.
struct GeluPass {
  at::ScalarType type = at::kFloat;
  const void *x = nullptr, *bias = nullptr;
  void *y = nullptr, *slope = nullptr;
  int64_t columns = 0;
};

struct ValueAndSlope {
  Floats value, slope;
};

// (1 + tanh t) / 2 is the logistic function s of 2t, so y = x s and dy/dx = s + x s (1 - s) d(2t)/dx.
TRAINYARD_INLINE ValueAndSlope ComputeGelu(Floats v) {
  constexpr float kA = 1.5957691216f, kB = 0.044715f;  // kA: 2 sqrt(2/pi)
  const Floats lowest = AllLanes(-87.0f), highest = AllLanes(87.0f);
  const Floats square = v * v;
  const Floats u = -kA * v * (1.0f + kB * square);  // -2t
  const Floats above = u < lowest ? lowest : u;
  const Floats e = ExpLanes(above > highest ? highest : above);
  const Floats s = 1.0f / (1.0f + e);
  // e s equals 1 - s without the digits that the subtraction loses when s is almost 1.
  return {v * s, s + v * s * (e * s) * (kA * (1.0f + 3.0f * kB * square))};
}

template <typename T>
TRAINYARD_INLINE void Rows(const GeluPass& pass, int64_t first, int64_t last) {
  const T* bias = static_cast<const T*>(pass.bias);
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(pass.x) + row * pass.columns;
    T* y = static_cast<T*>(pass.y) + row * pass.columns;
    T* slope = pass.slope == nullptr ? nullptr : static_cast<T*>(pass.slope) + row * pass.columns;
    int64_t i = 0;
    for (; i + kLanes <= pass.columns; i += kLanes) {
      const Floats v = LoadLanes(x + i);
      const ValueAndSlope result = ComputeGelu(bias == nullptr ? v : v + LoadLanes(bias + i));
      StoreLanes(result.value, y + i);
      if (slope != nullptr) StoreLanes(result.slope, slope + i);
    }
    if (const int64_t rest = pass.columns - i; rest > 0) {
      const Floats v = LoadFirstLanes(x + i, rest);
      const ValueAndSlope result = ComputeGelu(bias == nullptr ? v : v + LoadFirstLanes(bias + i, rest));
      StoreFirstLanes(result.value, y + i, rest);
      if (slope != nullptr) StoreFirstLanes(result.slope, slope + i, rest);
    }
  }
}

TRAINYARD_INLINE void Either(const GeluPass& pass, int64_t first, int64_t last) {
  pass.type == at::kFloat ? Rows<float>(pass, first, last) : Rows<uint16_t>(pass, first, last);
}

// The same loop, compiled for three kinds of CPU.
TRAINYARD_AVX512 void RunAvx512(const GeluPass& pass, int64_t first, int64_t last) { Either(pass, first, last); }
TRAINYARD_AVX2 void RunAvx2(const GeluPass& pass, int64_t first, int64_t last) { Either(pass, first, last); }
void RunAny(const GeluPass& pass, int64_t first, int64_t last) { Either(pass, first, last); }

// `slope` undefined: not needed.
at::Tensor Run(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& slope) {
  at::Tensor y = at::empty_like(x);
  static const auto run = ForCpu(RunAvx512, RunAvx2, RunAny);
  const GeluPass pass{.type = x.scalar_type(),
                      .x = x.const_data_ptr(),
                      .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                      .y = y.mutable_data_ptr(),
                      .slope = slope.defined() ? slope.mutable_data_ptr() : nullptr,
                      .columns = x.dim() == 0 ? 1 : x.size(-1)};
  if (x.numel() == 0) return y;
  at::parallel_for(0, x.numel() / pass.columns, std::max<int64_t>(1, kGrain / pass.columns),
                   [&](int64_t first, int64_t last) { run(pass, first, last); });
  return y;
}

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& bias, int64_t sink, int64_t bias_number) {
    at::Tensor slope = at::empty_like(x);
    at::Tensor y = Run(x, bias.value_or(at::Tensor()), slope);
    context->save_for_backward({slope});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["sink"] = sink;
    context->saved_data["bias"] = bias_number;
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    // The product is computed in place: no other tensor shares the slope, and a graph is run backward once.
    torch::autograd::tensor_list result(4);
    result[0] = context->get_saved_variables()[0].mul_(gradients[0]);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) {
      auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
      result[1] = SumRowsIntoSink(result[0], sink, static_cast<int>(context->saved_data["bias"].toInt()));
    }
    return result;
  }
};

}  // namespace

at::Tensor Gelu(const at::Tensor& x, const NumberedTensor& bias, GradientSink* sink) {
  const at::Tensor& added = bias.tensor;
  if (!x.is_cpu() || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16)) {
    return at::gelu(added.defined() ? at::add(x, added) : x, "tanh");
  }
  at::Tensor input = x.contiguous();
  const bool differentiates = x.requires_grad() || (added.defined() && added.requires_grad());
  if (!c10::GradMode::is_enabled() || !differentiates) return Run(input, added, at::Tensor());
  const auto to_add = added.defined() ? std::optional<at::Tensor>(added) : std::nullopt;
  return GeluFunction::apply(input, to_add, reinterpret_cast<int64_t>(sink), int64_t{bias.number});
}

at::Tensor Gelu(const at::Tensor& x) { return Gelu(x, NumberedTensor()); }

}  // namespace trainyard
