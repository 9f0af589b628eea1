// Kernels for operations for which LibTorch needs more, or slower, passes over memory: cross_entropy.h, norm.h and
// sum_rows.h. NVRTC compiles all of them when a rank starts (nvrtc.h).
#pragma once

#include "absl/status/status.h"

namespace trainyard {

// Compiles the kernels for compute capability `major`.`minor`; needs no GPU. Possible errors: those of CompileCuda.
absl::Status CompileKernels(int major, int minor);

// Compiles and loads the kernels for the current device, and registers the operators that use them. Later calls return
// the result of the first, or fail if they are for another capability. After an error, LibTorch's own kernels remain in
// use. Thread-safe.
absl::Status LoadKernels(int major, int minor);

}  // namespace trainyard
