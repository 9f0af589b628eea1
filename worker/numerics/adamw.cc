#include "worker/numerics/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "worker/numerics/adamw_kernel.h"

namespace trainyard {
namespace {

std::byte* BytesOf(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

AdamW::AdamW(const AdamWConfig& config, std::vector<Range> ranges) : config_(config), ranges_(std::move(ranges)) {
  for (Range& range : ranges_) {
    const auto of_state = range.parameters.options().dtype(config.state_type.value_or(range.parameters.scalar_type()));
    for (at::Tensor* moment : {&range.exp_avg, &range.exp_avg_sq}) {
      if (!moment->defined()) *moment = at::zeros_like(range.parameters, of_state);
    }
    exp_avg_.push_back(range.exp_avg);
    exp_avg_sq_.push_back(range.exp_avg_sq);
  }
}

void AdamW::Step(double lr, double gradient_scale) {
  BeginStep();
  for (const Range& range : ranges_) Update(range, lr, gradient_scale);
}

void AdamW::Update(const Range& range, double lr, double gradient_scale) const {
  c10::NoGradGuard no_grad;
  range.parameters.is_cpu() ? StepOnCpu(range, lr, gradient_scale) : StepOnGpu(range, lr, gradient_scale);
}

void AdamW::StepOnCpu(const Range& range, double lr, double gradient_scale) const {
  const double t = static_cast<double>(num_steps_);
  const AdamWPass::Constants constants{.scale = gradient_scale,
                                       .clip_value = config_.clip_value,
                                       .keep = range.decays ? 1 - lr * config_.weight_decay : 1,
                                       .beta1 = config_.beta1,
                                       .beta2 = config_.beta2,
                                       .eps = config_.eps,
                                       .step_size = lr / (1 - std::pow(config_.beta1, t)),
                                       .root_scale = 1 / std::sqrt(1 - std::pow(config_.beta2, t))};
  auto run = [&](const Span& span) {
    auto at = [&](const at::Tensor& tensor) {
      return BytesOf(tensor) + span.offset * static_cast<int64_t>(tensor.element_size());
    };
    RunAdamW({.size = span.count,
              .master_type = range.parameters.scalar_type(),
              .state_type = range.exp_avg.scalar_type(),
              .gradient_type = range.gradients.scalar_type(),
              .master = at(range.parameters),
              .exp_avg = at(range.exp_avg),
              .exp_avg_sq = at(range.exp_avg_sq),
              .gradient = at(range.gradients),
              .weight_type = range.weights.defined() ? range.weights.scalar_type() : at::kFloat,
              .weight = range.weights.defined() ? at(range.weights) : nullptr,
              .constants = constants,
              .rounding_key = RoundingKey(config_.seed, num_steps_, span.parameter),
              .first_element = span.first_element,
              .runs = span.runs});
  };
  const bool rounds = range.parameters.scalar_type() == at::kBFloat16 || range.exp_avg.scalar_type() == at::kBFloat16;
  if (!rounds || range.spans.empty()) {
    run({.offset = 0, .count = range.parameters.numel(), .parameter = 0, .first_element = 0});
    return;
  }
  for (const Span& span : range.spans) run(span);
}

void AdamW::StepOnGpu(const Range& range, double lr, double gradient_scale) const {
  const auto scalar = [&](double value) { return at::full({}, value, range.parameters.options().dtype(at::kFloat)); };
  at::Tensor gradients = range.gradients;
  std::optional<at::Tensor> divisor;  // of the gradients; applied in the same pass
  if (gradients.scalar_type() == range.parameters.scalar_type() && config_.clip_value == 0) {
    divisor = scalar(1 / gradient_scale);
  } else {
    gradients =
        gradients.to(range.parameters.scalar_type(), /*non_blocking=*/false, /*copy=*/true).mul_(gradient_scale);
    if (config_.clip_value > 0) gradients.clamp_(-config_.clip_value, config_.clip_value);
  }
  at::Tensor steps = scalar(static_cast<double>(num_steps_));
  std::vector<at::Tensor> parameters{range.parameters}, exp_avg{range.exp_avg}, exp_avg_sq{range.exp_avg_sq};
  at::_fused_adamw_(parameters, {gradients}, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, {steps}, lr, config_.beta1,
                    config_.beta2, range.decays ? config_.weight_decay : 0, config_.eps, /*amsgrad=*/false,
                    /*maximize=*/false, divisor);
  if (range.weights.defined()) range.weights.copy_(range.parameters);
}

}  // namespace trainyard
