// One kernel for cross-entropies and their gradients (worker/model/ops/row_cross_entropy.h): it reads a row of scores,
// and right after that, while the row is still in the cache, reads it again and replaces it with its gradient. LibTorch
// needs four passes over all scores.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace trainyard {

// Makes LibTorch use the kernels of `library` for CUDA tensors of fp32, bf16 and fp16.
absl::Status RegisterCrossEntropy(cudaLibrary_t library);

}  // namespace trainyard
