// One pass of AdamW over flat memory on a CPU, in the types of a precision: reads gradients of any floating type,
// scales and clips them, updates masters and moments, and writes the weights of 16 bits, all in one go.
//
// Each element is computed by itself and by the same rounded operations wherever it lies, on however many threads and
// whatever vector instructions the CPU has: shards have the bits of the whole, and replicas on unlike hosts stay equal.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

#include "worker/numerics/cpu.h"

namespace trainyard {

// fp64 goes with fp64 alone; else masters and moments are fp32 or bf16, gradients and weights fp32, bf16 or fp16.
struct AdamWPass {
  struct Constants {
    double scale = 1;       // of the gradients
    double clip_value = 0;  // then of each, to [-clip_value, clip_value]; 0: not
    double keep = 1;        // 1 - lr x decay
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
  // bf16 masters and moments are rounded up or down by hashes of (key, first_element + i).
  uint64_t rounding_key = 0;
  int64_t first_element = 0;
};

// `max_code`: the best instructions that may be used; those that the CPU has not are not.
void RunAdamW(const AdamWPass& pass, VectorCode max_code = VectorCode::kAvx512);

// Of a step's update of a parameter, for all layouts alike.
uint64_t RoundingKey(uint64_t seed, uint64_t step, uint64_t parameter);

}  // namespace trainyard
