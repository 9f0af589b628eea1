#include "worker/model/ops/layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/model/ops/device_norm.h"
#include "worker/model/ops/layer_norm_kernel.h"

namespace trainyard {
namespace {

// The number of rows whose parameter gradients are summed together. It is constant, so that the number of threads does
// not change the order of sums.
constexpr int64_t kBlock = 64;
// Rows per thread in the forward pass; fewer are not worth another thread.
constexpr int64_t kGrain = 32;

int64_t RowsOf(const at::Tensor& x) { return x.numel() / x.size(-1); }

// `statistics` is [2, rows], or undefined if they are not needed.
at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                   const at::Tensor& statistics) {
  at::Tensor y = at::empty_like(x);
  const int64_t rows = RowsOf(x);
  float* mean = statistics.defined() ? statistics.mutable_data_ptr<float>() : nullptr;
  const LayerNormForward pass{.type = x.scalar_type(),
                              .x = x.const_data_ptr(),
                              .weight = weight.const_data_ptr(),
                              .bias = bias.const_data_ptr(),
                              .y = y.mutable_data_ptr(),
                              .mean = mean,
                              .inverse_deviation = mean == nullptr ? nullptr : mean + rows,
                              .columns = x.size(-1),
                              .eps = static_cast<float>(eps)};
  at::parallel_for(0, rows, kGrain, [&](int64_t first, int64_t last) { RunLayerNorm(pass, first, last); });
  return y;
}

// `parameters` is [2, blocks, columns]: the gradients of weight and bias, to be summed over blocks.
DeviceNormGradients LayerNormBackwardOnCpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                                           const at::Tensor& grad_y, const at::Tensor& residual, bool needs_x) {
  const int64_t rows = RowsOf(x), columns = x.size(-1), blocks = (rows + kBlock - 1) / kBlock;
  DeviceNormGradients result{.x = needs_x ? at::empty_like(x) : at::Tensor(),
                             .parameters = at::empty({2, blocks, columns}, statistics.options())};
  const float* mean = statistics.const_data_ptr<float>();
  const LayerNormBackward pass{.type = x.scalar_type(),
                               .x = x.const_data_ptr(),
                               .weight = weight.const_data_ptr(),
                               .grad_y = grad_y.const_data_ptr(),
                               .grad_residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                               .grad_x = needs_x ? result.x.mutable_data_ptr() : nullptr,
                               .mean = mean,
                               .inverse_deviation = mean + rows,
                               .columns = columns};
  float* totals = result.parameters.mutable_data_ptr<float>();
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    LayerNormBackward part = pass;
    for (int64_t block = first; block < last; ++block) {
      part.grad_weight = totals + block * columns;
      part.grad_bias = totals + (blocks + block) * columns;
      RunLayerNorm(part, block * kBlock, std::min(rows, (block + 1) * kBlock));
    }
  });
  return result;
}

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kBias, kNumInputs = 7 };

  static torch::autograd::tensor_list forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                                              const at::Tensor& bias, double eps, int64_t sink, int64_t weight_number,
                                              int64_t bias_number) {
    DeviceNorm norm;
    if (x.is_cpu()) {
      norm.statistics = at::empty({2, RowsOf(x)}, x.options().dtype(at::kFloat));
      norm.y = Forward(x, weight, bias, eps, norm.statistics);
    } else {
      norm = RunDeviceNorm(x, weight, bias, eps);
    }
    context->save_for_backward({x, weight, norm.statistics});
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
    context->saved_data["bias"] = bias_number;
    context->set_materialize_grads(false);
    return {x.view_as(x), norm.y};
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    torch::autograd::tensor_list result(kNumInputs);
    if (!gradients[1].defined()) {
      result[kX] = gradients[0];
      return result;
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &statistics = saved[2];
    const at::Tensor grad_y = gradients[1].contiguous();
    const at::Tensor residual = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    const auto run = x.is_cpu() ? &LayerNormBackwardOnCpu : &RunDeviceNormBackward;
    const DeviceNormGradients found = run(x, weight, statistics, grad_y, residual, context->needs_input_grad(kX));
    result[kX] = found.x;
    auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
    auto store_gradient = [&](Input input, const char* number, const at::Tensor& of_blocks) {
      if (!context->needs_input_grad(input)) return;
      at::Tensor rejected_by_sink =
          SumRowsIntoSink(of_blocks, sink, static_cast<int>(context->saved_data[number].toInt()));
      if (rejected_by_sink.defined()) result[input] = rejected_by_sink.to(weight.scalar_type());
    };
    store_gradient(kWeight, "weight", found.parameters.select(0, 0));
    store_gradient(kBias, "bias", found.parameters.select(0, 1));
    return result;
  }
};

}  // namespace

Normalised LayerNorm(const at::Tensor& x, const NumberedTensor& weight, const NumberedTensor& bias, double eps,
                     GradientSink* sink) {
  const at::Tensor rows = x.contiguous();
  const bool ours = x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.numel() > 0;
  if (!ours && !HasDeviceNorm(rows)) return {x, at::layer_norm(x, {x.size(-1)}, weight.tensor, bias.tensor, eps)};
  const bool differentiates = x.requires_grad() || weight.tensor.requires_grad() || bias.tensor.requires_grad();
  if (!c10::GradMode::is_enabled() || !differentiates) {
    return {rows, ours ? Forward(rows, weight.tensor, bias.tensor, eps, at::Tensor())
                       : RunDeviceNorm(rows, weight.tensor, bias.tensor, eps).y};
  }
  const auto outputs = LayerNormFunction::apply(rows, weight.tensor, bias.tensor, eps, reinterpret_cast<int64_t>(sink),
                                                int64_t{weight.number}, int64_t{bias.number});
  return {outputs[0], outputs[1]};
}

}  // namespace trainyard
