#include "worker/model/gelu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>

namespace trainyard {
namespace {

// e^x for x in [-87, 87], to about 1e-7 relative: 2^n times a polynomial in what is left, which is at most half of
// ln 2. No branch and no call, so that the compiler turns the loop around it into vector code.
inline __attribute__((always_inline)) float Exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: adding it leaves no bits for a fraction
  float n = (x * kLog2E + kRound) - kRound;
  float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;  // Cephes' expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// (1 + tanh u) / 2 is the logistic function s of 2u, so y = x s and dy/dx = s + x s (1 - s) d(2u)/dx.
template <bool kWithDerivative>
inline __attribute__((always_inline)) void Loop(const float* __restrict x, float* __restrict y, float* __restrict slope,
                                                int64_t size) {
  constexpr float kA = 1.5957691216f, kB = 0.044715f;  // 2 sqrt(2/pi)
  for (int64_t i = 0; i < size; ++i) {
    float v = x[i], square = v * v;
    float twice_u = kA * v * (1.0f + kB * square);
    float e = Exp(std::min(std::max(-twice_u, -87.0f), 87.0f));
    float s = 1.0f / (1.0f + e);
    y[i] = v * s;
    // e s is 1 - s without the digits that a difference loses where s is almost 1.
    if (kWithDerivative) slope[i] = s + v * s * (e * s) * (kA * (1.0f + 3.0f * kB * square));
  }
}

inline __attribute__((always_inline)) void Either(const float* x, float* y, float* slope, int64_t size) {
  slope != nullptr ? Loop<true>(x, y, slope, size) : Loop<false>(x, y, slope, size);
}

// The same loop for three kinds of CPU.
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))) void RunAvx512(const float* x, float* y, float* slope,
                                                                                 int64_t size) {
  Either(x, y, slope, size);
}
__attribute__((target("avx2,fma"))) void RunAvx2(const float* x, float* y, float* slope, int64_t size) {
  Either(x, y, slope, size);
}
void RunAny(const float* x, float* y, float* slope, int64_t size) { Either(x, y, slope, size); }

// `slope` undefined: not wanted.
at::Tensor Run(const at::Tensor& x, const at::Tensor& slope) {
  at::Tensor y = at::empty_like(x);
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  auto* run = avx512 ? RunAvx512 : avx2 ? RunAvx2 : RunAny;
  run(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
      slope.defined() ? slope.mutable_data_ptr<float>() : nullptr, x.numel());
  return y;
}

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    at::Tensor slope = at::empty_like(x);
    at::Tensor y = Run(x, slope);
    context->save_for_backward({slope});
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    // In place: nobody else has the slope, and a graph is run backward once.
    return {context->get_saved_variables()[0].mul_(gradients[0])};
  }
};

}  // namespace

at::Tensor Gelu(const at::Tensor& x) {
  if (x.scalar_type() != at::kFloat || at::get_num_threads() != 1) return at::gelu(x, "tanh");
  at::Tensor input = x.contiguous();
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return Run(input, at::Tensor());
  return GeluFunction::apply(input);
}

}  // namespace trainyard
