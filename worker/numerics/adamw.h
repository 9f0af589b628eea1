// AdamW with decoupled weight decay (arXiv:1711.05101) over a few long, flat tensors instead of one per parameter: one
// pass of LibTorch's fused kernel over each. State lives in tensors as flat as the parameters.
//
// Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trainyard {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

class AdamW {
 public:
  // A stretch of parameters that are all decayed, or all not.
  struct Range {
    at::Tensor parameters;  // flat
    at::Tensor gradients;   // flat, as long
    bool decays = false;
  };

  AdamW(const AdamWConfig& config, std::vector<Range> ranges);

  // One update from gradient x `gradient_scale`. The gradients are left in an unspecified state.
  void Step(double lr, double gradient_scale);

  // One flat tensor a range, in their order, to be copied into when restoring.
  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }
  uint64_t num_steps() const { return num_steps_; }
  void set_num_steps(uint64_t num_steps) { num_steps_ = num_steps; }

 private:
  struct Group {  // what one call of the kernel takes
    std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq, steps;
    double weight_decay = 0;
  };

  AdamWConfig config_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<Group> groups_;
  uint64_t num_steps_ = 0;
};

}  // namespace trainyard
