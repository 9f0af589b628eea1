// Products of a few rows and a matrix, for decoding: the time is that of reading the matrix once. Every row is computed
// with the same operations in the same order whatever the other rows are and however many threads there are, so that
// a sequence's next token does not depend on the sequences that are decoded with it.
//
// fp32 and bf16 on a CPU, with sums in fp32 that are rounded once. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Whether MultiplyFewRows supports tensors of this type on this device.
bool CanMultiplyFewRows(const at::Tensor& x);

// x w + bias + residual: x [rows, in], w [in, out], or [out, in] if `transposed`. Returns [rows, out], without a
// gradient. `bias` [out] and `residual` [rows, out] may be undefined. REQUIRES: all are dense and of x's type.
at::Tensor MultiplyFewRows(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                           const at::Tensor& residual);

}  // namespace trainyard
