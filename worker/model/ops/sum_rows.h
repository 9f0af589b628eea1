// The first of two steps that sum the rows of a matrix on a GPU: it adds rows until few are left, and the caller sums
// these with LibTorch. LibTorch alone reads a large 16-bit matrix at half the speed of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Returns a matrix in fp32 with fewer rows and, but for rounding, the same sum of rows, computed by a kernel of the
// GPU's plugin (worker/cuda/sum_rows.h); or `rows` itself if there is no kernel for it, or if it has few rows.
// Thread-safe.
at::Tensor WithFewerRows(const at::Tensor& rows);

}  // namespace trainyard
