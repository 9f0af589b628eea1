// A kernel that computes cross-entropies and their gradients (worker/model/ops/row_cross_entropy.h) in one pass over
// the memory of the scores. LibTorch needs four. NVRTC, a library of the torch wheel, compiles it when a job starts, so
// no build needs nvcc.
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
// fp16. Later calls do nothing; they fail for another capability. After an error, LibTorch's own
// kernels remain in use.
absl::Status LoadCrossEntropy(int major, int minor);

}  // namespace trainyard
