// The kernels of worker/model/ops/device_norm.h. Forward reads x once. Backward reads x and the gradient of y once,
// adds the gradient that reaches x through a residual sum, and sums the gradients of weight and bias in the same pass.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace trainyard {

// Makes LibTorch use the kernels of `library` for CUDA tensors of fp32, bf16 and fp16.
absl::Status RegisterNorm(cudaLibrary_t library);

}  // namespace trainyard
