// One kernel for cross-entropies and their gradients (worker/model/ops/row_cross_entropy.h): it reads a row of scores,
// and right after that reads it again and overwrites it by its gradient. LibTorch needs four passes over all scores.
// NVRTC, a library of the torch wheel, compiles the kernel when a rank starts, so no build needs nvcc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

// Compiles the kernels for compute capability `major`.`minor`. Returns the machine code; needs no GPU. Possible errors:
// Unavailable if NVRTC cannot be loaded; InvalidArgument if it does not know the capability; Internal with its log.
absl::StatusOr<std::vector<char>> CompileCrossEntropy(int major, int minor);

// Compiles and loads the kernels for the current device, which LibTorch then uses for CUDA tensors of fp32, bf16 and
// fp16. Later calls return the result of the first, or fail if they are for another capability. After an error,
// LibTorch's own kernels remain in use.
absl::Status LoadCrossEntropy(int major, int minor);

}  // namespace trainyard
