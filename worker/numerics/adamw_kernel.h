// One pass of AdamW over flat memory on a CPU, in the types of a precision: reads gradients of any floating-point type,
// scales and clips them, updates masters and moments, and writes the 16-bit weights.
//
// Each element is computed independently, by the same rounded operations wherever it is, with any number of threads and
// any vector instructions. So shards get the same bits as the whole tensor, and replicas on different CPUs stay equal.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

#include "worker/numerics/cpu.h"
#include "worker/numerics/element_numbers.h"

namespace trainyard {

// fp64 must be used for all or none. Otherwise masters and moments are fp32 or bf16; gradients and weights fp32, bf16
// or fp16.
struct AdamWPass {
  struct Constants {
    double scale = 1;       // multiplies the gradients
    double clip_value = 0;  // limits each scaled gradient to [-clip_value, clip_value]; 0: no limit
    double keep = 1;        // factor of the weight decay, 1 - lr x decay
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
    double step_size = 0;   // lr / (1 - beta1^t)
    double root_scale = 1;  // 1 / sqrt(1 - beta2^t)
  };

  int64_t size = 0;
  at::ScalarType master_type = at::kFloat, state_type = at::kFloat, gradient_type = at::kFloat;
  std::byte *master = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr;
  const std::byte* gradient = nullptr;
  at::ScalarType weight_type = at::kFloat;
  std::byte* weight = nullptr;  // null: the masters are the weights
  Constants constants = {};
  // bf16 masters and moments are rounded up or down according to hashes of (key, number), where element i of the pass
  // has the number of element first_element + i of the box that `runs` describes.
  uint64_t rounding_key = 0;
  int64_t first_element = 0;
  ElementRuns runs = {};
};

// `max_code`: the best instructions that may be used; a CPU without them uses the best that it has.
void RunAdamW(const AdamWPass& pass, VectorCode max_code = VectorCode::kAvx512);

// The key for the update of `parameter` in `step`, the same in all layouts.
uint64_t RoundingKey(uint64_t seed, uint64_t step, uint64_t parameter);

}  // namespace trainyard
