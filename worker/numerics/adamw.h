// AdamW with decoupled weight decay (arXiv:1711.05101) over a few long, flat tensors instead of one per parameter, in
// one pass over each that scales, clips, updates and writes the 16-bit weights (adamw_kernel.h). On a GPU: LibTorch's
// fused kernel. State lives in tensors as flat as the parameters.
//
// Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trainyard {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_value = 0;                          // of each scaled gradient; 0: not clipped
  std::optional<at::ScalarType> state_type = {};  // of the moments that are made here; none: the parameters'
  uint64_t seed = 0;                              // of rounding by chance
};

class AdamW {
 public:
  // Elements of one parameter within a range, so that rounding by chance falls alike in every layout.
  struct Span {
    int64_t offset = 0;  // in the range
    int64_t count = 0;
    uint64_t parameter = 0;     // its number in the model
    int64_t first_element = 0;  // of the parameter
  };

  // A stretch of parameters that are all decayed, or all not.
  struct Range {
    at::Tensor parameters;  // flat; masters, where weights of 16 bits are apart
    at::Tensor gradients;   // flat, as long; of any floating type
    bool decays = false;
    at::Tensor exp_avg = {}, exp_avg_sq = {};  // flat, as long; undefined: made here, with zeros
    at::Tensor weights = {};                   // flat, as long, fp32, bf16 or fp16: written by the update
    // Where parameters or moments are bf16; elements outside are gaps and left alone. Empty: the range is one
    // parameter.
    std::vector<Span> spans = {};
  };

  AdamW(const AdamWConfig& config, std::vector<Range> ranges);

  // One update from gradient x `gradient_scale`. On a CPU the gradients keep their values, and each element gets the
  // same bits whatever range it lies in and however many threads there are.
  void Step(double lr, double gradient_scale);
  // The same in parts: counts the update, then makes it of each range, wherever its tensors lie now.
  void BeginStep() { ++num_steps_; }
  void Update(const Range& range, double lr, double gradient_scale) const;

  const std::vector<Range>& ranges() const { return ranges_; }

  // One flat tensor a range, in their order, to be copied into when restoring.
  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }
  uint64_t num_steps() const { return num_steps_; }
  // REQUIRES for rounding by chance: the number of updates, not of steps, so that a skipped step draws nothing.
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
