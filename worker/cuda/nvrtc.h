// Compiles CUDA source at run time by NVRTC, a library of the torch wheel, so that no build needs nvcc. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard {

// Returns machine code for compute capability `major`.`minor`; needs no GPU. Possible errors: Unavailable if NVRTC
// cannot be loaded; InvalidArgument if it does not know the capability; Internal with its log.
absl::StatusOr<std::vector<char>> CompileCuda(const std::string& source, int major, int minor);

}  // namespace trainyard
