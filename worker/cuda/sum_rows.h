// The kernel of worker/model/ops/sum_rows.h.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace trainyard {

// Makes LibTorch use the kernels of `library` for CUDA tensors of fp32, bf16 and fp16.
absl::Status RegisterSumRows(cudaLibrary_t library);

}  // namespace trainyard
