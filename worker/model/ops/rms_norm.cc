#include "worker/model/ops/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/model/ops/device_norm.h"
#include "worker/model/ops/rms_norm_kernel.h"

namespace trainyard {
namespace {

// Rows whose weight gradients are summed together, for any number of threads.
constexpr int64_t kRmsBlock = 64;
// Rows per thread in the forward pass; fewer are not worth another thread.
constexpr int64_t kRmsGrain = 32;

int64_t NumRows(const at::Tensor& x) { return x.numel() / x.size(-1); }

at::Tensor RmsNormByLibTorch(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor inverse = (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return (wide * inverse).to(x.scalar_type()) * weight;
}

// `inverse_rms` is [rows], or undefined if it is not needed.
at::Tensor RunForward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& inverse_rms) {
  at::Tensor y = at::empty_like(x);
  const RmsNormForward pass{.type = x.scalar_type(),
                            .x = x.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .y = y.mutable_data_ptr(),
                            .inverse_rms = inverse_rms.defined() ? inverse_rms.mutable_data_ptr<float>() : nullptr,
                            .columns = x.size(-1),
                            .eps = static_cast<float>(eps)};
  at::parallel_for(0, NumRows(x), kRmsGrain, [&](int64_t first, int64_t last) { RunRmsNorm(pass, first, last); });
  return y;
}

// `parameters` is [1, blocks, columns]: the gradient of the weight, to be summed over blocks.
DeviceNormGradients RmsNormBackwardOnCpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms,
                                         const at::Tensor& grad_y, const at::Tensor& residual, bool needs_x) {
  const int64_t rows = NumRows(x), columns = x.size(-1), blocks = (rows + kRmsBlock - 1) / kRmsBlock;
  DeviceNormGradients result{.x = needs_x ? at::empty_like(x) : at::Tensor(),
                             .parameters = at::empty({1, blocks, columns}, inverse_rms.options())};
  const RmsNormBackward pass{.type = x.scalar_type(),
                             .x = x.const_data_ptr(),
                             .weight = weight.const_data_ptr(),
                             .grad_y = grad_y.const_data_ptr(),
                             .grad_residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                             .grad_x = needs_x ? result.x.mutable_data_ptr() : nullptr,
                             .inverse_rms = inverse_rms.const_data_ptr<float>(),
                             .columns = columns};
  float* totals = result.parameters.mutable_data_ptr<float>();
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    RmsNormBackward part = pass;
    for (int64_t block = first; block < last; ++block) {
      part.grad_weight = totals + block * columns;
      RunRmsNorm(part, block * kRmsBlock, std::min(rows, (block + 1) * kRmsBlock));
    }
  });
  return result;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kNumInputs = 5 };

  static torch::autograd::tensor_list forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                                              double eps, int64_t sink, int64_t weight_number) {
    DeviceNorm norm;
    if (x.is_cpu()) {
      norm.statistics = at::empty({1, NumRows(x)}, x.options().dtype(at::kFloat));
      norm.y = RunForward(x, weight, eps, norm.statistics);
    } else {
      norm = RunDeviceNorm(x, weight, /*bias=*/at::Tensor(), eps);
    }
    context->save_for_backward({x, weight, norm.statistics});
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
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
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    const at::Tensor grad_y = gradients[1].contiguous();
    const at::Tensor residual = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    const auto run = x.is_cpu() ? &RmsNormBackwardOnCpu : &RunDeviceNormBackward;
    const DeviceNormGradients found = run(x, weight, inverse_rms, grad_y, residual, context->needs_input_grad(kX));
    result[kX] = found.x;
    if (context->needs_input_grad(kWeight)) {
      auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
      const at::Tensor rejected_by_sink =
          SumRowsIntoSink(found.parameters.select(0, 0), sink, static_cast<int>(context->saved_data["weight"].toInt()));
      if (rejected_by_sink.defined()) result[kWeight] = rejected_by_sink.to(weight.scalar_type());
    }
    return result;
  }
};

}  // namespace

Normalised RmsNorm(const at::Tensor& x, const NumberedTensor& weight, double eps, GradientSink* sink) {
  const at::Tensor rows = x.contiguous();
  const bool ours = x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.numel() > 0;
  if (!ours && !HasDeviceNorm(rows)) return {x, RmsNormByLibTorch(x, weight.tensor, eps)};
  const bool differentiates = x.requires_grad() || weight.tensor.requires_grad();
  if (!c10::GradMode::is_enabled() || !differentiates) {
    return {rows, ours ? RunForward(rows, weight.tensor, eps, at::Tensor())
                       : RunDeviceNorm(rows, weight.tensor, /*bias=*/at::Tensor(), eps).y};
  }
  const auto outputs =
      RmsNormFunction::apply(rows, weight.tensor, eps, reinterpret_cast<int64_t>(sink), int64_t{weight.number});
  return {outputs[0], outputs[1]};
}

}  // namespace trainyard
