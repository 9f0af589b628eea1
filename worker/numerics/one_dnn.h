// oneDNN's products of dense matrices, through the function with which LibTorch calls it.
//
// Thread-safe. Inside at::parallel_for a product uses only the calling thread; elsewhere at::get_num_threads(). The first
// product of a shape takes milliseconds, because oneDNN generates its code.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Whether LibTorch lets oneDNN multiply matrices of this type on this CPU. Constant in a process.
bool OneDnnMultiplies(at::ScalarType type);

// y = a b + y, or a b if `overwrites`. REQUIRES: OneDnnMultiplies; y is dense.
void OneDnnProduct(const at::Tensor& a, const at::Tensor& b, bool overwrites, const at::Tensor& y);

}  // namespace trainyard
