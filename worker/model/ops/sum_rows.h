// The first half of a sum of rows on a GPU. LibTorch's sum over the rows of a large 16-bit matrix reads it at half the
// speed of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Returns a matrix in fp32 with fewer rows and, but for rounding, the same sum of rows, computed by a kernel of the
// GPU's plugin (worker/cuda/sum_rows.h); or `rows` itself if there is no kernel for it, or if it has few rows.
// Thread-safe.
at::Tensor WithFewerRows(const at::Tensor& rows);

}  // namespace trainyard
