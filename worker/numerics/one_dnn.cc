#include "worker/numerics/one_dnn.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "worker/numerics/cpu.h"

// Weak, because a LibTorch that was built without oneDNN does not have it, and other versions may not export it.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                         float alpha);
}

namespace trainyard {
namespace {

// LibTorch's own check is an exception, which depends on the CPU and on the variables that restrict oneDNN.
bool Try(at::ScalarType type) {
  if (at::native::mkldnn_matmul == nullptr || BestVectorCode() != VectorCode::kAvx512) return false;
  try {
    const at::Tensor one = at::zeros({16, 16}, type), result = at::empty({16, 16}, type);
    at::native::mkldnn_matmul(one, one, result, /*beta=*/0, /*alpha=*/1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

bool OneDnnMultiplies(at::ScalarType type) {
  static const bool fp32 = Try(at::kFloat), bf16 = Try(at::kBFloat16), fp16 = Try(at::kHalf);
  return type == at::kFloat ? fp32 : type == at::kBFloat16 ? bf16 : type == at::kHalf && fp16;
}

void OneDnnProduct(const at::Tensor& a, const at::Tensor& b, bool overwrites, const at::Tensor& y) {
  at::native::mkldnn_matmul(a, b, y, overwrites ? 0.0f : 1.0f, /*alpha=*/1);
}

}  // namespace trainyard
