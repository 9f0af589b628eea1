// SwiGLU without its projections: silu(gate) x up, where silu(x) = x / (1 + e^-x) (arXiv:2002.05202).
//
// Our kernel reads both factors once and computes one exponential; backward reads them again and computes both
// gradients in one pass, so nothing but gate and up is stored. Our kernel supports fp32 and bf16 on a CPU, computing in
// fp32; all other cases use LibTorch. The result of an element does not depend on its position or on the number of
// threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// The result is contiguous and can be differentiated once. REQUIRES: both tensors have one shape and type.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace trainyard
