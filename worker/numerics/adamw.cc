#include "worker/numerics/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace trainyard {

AdamW::AdamW(const AdamWConfig& config, std::vector<Range> ranges) : config_(config), groups_(2) {
  groups_[1].weight_decay = config.weight_decay;
  for (Range& range : ranges) {
    exp_avg_.push_back(at::zeros_like(range.parameters));
    exp_avg_sq_.push_back(at::zeros_like(range.parameters));
    Group& group = groups_[range.decays ? 1 : 0];
    group.parameters.push_back(range.parameters);
    group.gradients.push_back(range.gradients);
    group.exp_avg.push_back(exp_avg_.back());
    group.exp_avg_sq.push_back(exp_avg_sq_.back());
  }
}

void AdamW::Step(double lr, double gradient_scale) {
  c10::NoGradGuard no_grad;
  ++num_steps_;
  // The kernel divides gradients by an fp32 `grad_scale` on its way, which saves a pass; fp64 would lose its digits by
  // it.
  at::Tensor steps = at::full({}, static_cast<double>(num_steps_), at::kFloat);
  std::optional<at::Tensor> divisor;
  for (Group& group : groups_) {
    if (group.parameters.empty()) continue;
    if (group.parameters[0].scalar_type() == at::kFloat) {
      divisor = at::full({}, 1 / gradient_scale, at::kFloat);
    } else {
      for (at::Tensor& gradient : group.gradients) gradient.mul_(gradient_scale);
    }
    group.steps.assign(group.parameters.size(), steps);
    at::_fused_adamw_(group.parameters, group.gradients, group.exp_avg, group.exp_avg_sq, /*max_exp_avg_sqs=*/{},
                      group.steps, lr, config_.beta1, config_.beta2, group.weight_decay, config_.eps, /*amsgrad=*/false,
                      /*maximize=*/false, divisor);
  }
}

}  // namespace trainyard
