// AdamW with decoupled weight decay (arXiv:1711.05101) over a few long, flat tensors instead of one tensor per
// parameter. On a CPU, one pass over each tensor scales and clips the gradients, updates, and writes the 16-bit weights
// (adamw_kernel.h); on a GPU, LibTorch's fused kernel is used. The optimizer state is stored in tensors with the layout
// of the parameters.
//
// Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/numerics/element_numbers.h"

namespace trainyard {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_value = 0;  // limit of each scaled gradient; 0: no clipping
  // The type of the moments that are created here; unset: the type of the parameters.
  std::optional<at::ScalarType> state_type = {};
  uint64_t seed = 0;  // for stochastic rounding
};

class AdamW {
 public:
  // The elements of one parameter within a range. With spans, stochastic rounding is identical in every layout.
  struct Span {
    int64_t offset = 0;  // in the range
    int64_t count = 0;
    uint64_t parameter = 0;     // its index in the model
    int64_t first_element = 0;  // of the box of the parameter that this rank holds
    ElementRuns runs = {};      // of this box
  };

  // Consecutive parameters that are either all weight-decayed or all not.
  struct Range {
    at::Tensor parameters;  // flat; the master weights, if the 16-bit weights are separate
    at::Tensor gradients;   // flat, of the same length; any floating-point type
    bool decays = false;
    at::Tensor exp_avg = {}, exp_avg_sq = {};  // flat, of the same length; undefined: created here with zeros
    at::Tensor weights = {};                   // flat, of the same length; fp32, bf16 or fp16; the update writes them
    // Needed if parameters or moments are bf16: then elements outside the spans are gaps and are not updated. Empty:
    // the range is one parameter.
    std::vector<Span> spans = {};
  };

  AdamW(const AdamWConfig& config, std::vector<Range> ranges);

  // Performs one update with gradient x `gradient_scale`. On a CPU the gradients are unchanged, and each element gets
  // the same bits whatever its range and the number of threads.
  void Step(double lr, double gradient_scale);
  // The same in parts: BeginStep counts the update, then Update processes each range, wherever its tensors currently
  // are.
  void BeginStep() { ++num_steps_; }
  void Update(const Range& range, double lr, double gradient_scale) const;

  const std::vector<Range>& ranges() const { return ranges_; }

  // One flat tensor per range, in the order of the ranges; a restore copies into them.
  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }
  // The number of updates made so far. A skipped step makes no update, so it is not counted.
  uint64_t num_steps() const { return num_steps_; }
  void set_num_steps(uint64_t num_steps) { num_steps_ = num_steps; }

 private:
  void StepOnCpu(const Range& range, double lr, double gradient_scale) const;
  void StepOnGpu(const Range& range, double lr, double gradient_scale) const;

  AdamWConfig config_;
  std::vector<Range> ranges_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  uint64_t num_steps_ = 0;
};

}  // namespace trainyard
