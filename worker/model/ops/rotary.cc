#include "worker/model/ops/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "worker/model/ops/row_lanes.h"

namespace trainyard {
namespace {

constexpr int64_t kRotaryGrain = int64_t{1} << 14;  // elements; fewer are not worth another thread

// Rows are tokens of all sequences; `direction` is 1, or -1 for the inverse rotation.
struct RotaryPass {
  at::ScalarType type = at::kFloat;
  const void* x = nullptr;
  void* y = nullptr;
  const float *cosines = nullptr, *sines = nullptr;
  const int64_t* positions = nullptr;  // of all rows; null: each sequence counts from 0
  int64_t tokens = 0;                  // of a sequence
  int64_t heads = 0;
  int64_t half = 0;  // half of a head's width
  float direction = 1;
};

template <typename T>
TRAINYARD_INLINE void RotaryRows(const RotaryPass& pass, int64_t first, int64_t last) {
  const int64_t half = pass.half;
  for (int64_t row = first; row < last; ++row) {
    const int64_t position = pass.positions == nullptr ? row % pass.tokens : pass.positions[row];
    const float* cosines = pass.cosines + position * half;
    const float* sines = pass.sines + position * half;
    for (int64_t head = 0; head < pass.heads; ++head) {
      const int64_t start = (row * pass.heads + head) * 2 * half;
      const T* x = static_cast<const T*>(pass.x) + start;
      T* y = static_cast<T*>(pass.y) + start;
      for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t size = LanesAt(i, half);
        const Floats a = LoadUpTo(x + i, size), b = LoadUpTo(x + half + i, size);
        const Floats c = LoadUpTo(cosines + i, size), s = LoadUpTo(sines + i, size) * pass.direction;
        StoreUpTo(a * c - b * s, y + i, size);
        StoreUpTo(b * c + a * s, y + half + i, size);
      }
    }
  }
}

TRAINYARD_INLINE void RotaryEither(const RotaryPass& pass, int64_t first, int64_t last) {
  pass.type == at::kFloat ? RotaryRows<float>(pass, first, last) : RotaryRows<uint16_t>(pass, first, last);
}

// The same loop, compiled for three kinds of CPU.
TRAINYARD_AVX512 void RotaryAvx512(const RotaryPass& pass, int64_t first, int64_t last) {
  RotaryEither(pass, first, last);
}
TRAINYARD_AVX2 void RotaryAvx2(const RotaryPass& pass, int64_t first, int64_t last) { RotaryEither(pass, first, last); }
void RotaryAny(const RotaryPass& pass, int64_t first, int64_t last) { RotaryEither(pass, first, last); }

at::Tensor RotateDense(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                       const at::Tensor& positions, float direction) {
  static const auto run = ForCpu(RotaryAvx512, RotaryAvx2, RotaryAny);
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  const RotaryPass pass{.type = x.scalar_type(),
                        .x = x.const_data_ptr(),
                        .y = y.mutable_data_ptr(),
                        .cosines = cosines.const_data_ptr<float>(),
                        .sines = sines.const_data_ptr<float>(),
                        .positions = positions.defined() ? positions.const_data_ptr<int64_t>() : nullptr,
                        .tokens = x.size(1),
                        .heads = x.size(2) / (2 * cosines.size(1)),
                        .half = cosines.size(1),
                        .direction = direction};
  at::parallel_for(0, x.size(0) * x.size(1), std::max<int64_t>(1, kRotaryGrain / x.size(2)),
                   [&](int64_t first, int64_t last) { run(pass, first, last); });
  return y;
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& cosines,
                            const at::Tensor& sines, const std::optional<at::Tensor>& positions) {
    const at::Tensor given = positions.value_or(at::Tensor());
    context->save_for_backward({cosines, sines, given});
    return RotateDense(x, cosines, sines, given, 1);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    return {RotateDense(gradients[0].contiguous(), saved[0], saved[1], saved[2], -1), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor RotateByLibTorch(const at::Tensor& x, const RotaryTable& table, const at::Tensor& positions) {
  const int64_t tokens = x.size(1), half = table.cosines.size(1);
  const auto of_tokens = [&](const at::Tensor& values) {
    return (positions.defined() ? at::embedding(values, positions) : values.narrow(0, 0, tokens)).unsqueeze(-2);
  };
  const at::Tensor cosines = of_tokens(table.cosines), sines = of_tokens(table.sines);
  const at::Tensor heads = x.view({x.size(0), tokens, -1, 2 * half});
  const at::Tensor a = heads.narrow(-1, 0, half), b = heads.narrow(-1, half, half);
  return at::cat({a * cosines - b * sines, b * cosines + a * sines}, -1).to(x.scalar_type()).view(x.sizes());
}

}  // namespace

at::Tensor RotaryFrequencies(const Rope& rope, int64_t head_width) {
  // Every operation is the one that transformers uses, in fp32.
  const at::Tensor exponents = at::arange(0, head_width, 2, at::kFloat) / static_cast<double>(head_width);
  const at::Tensor frequencies = at::pow(rope.theta, exponents).reciprocal();
  switch (rope.scaling) {
    case Rope::Scaling::kNone:
      return frequencies;
    case Rope::Scaling::kLinear:
      return frequencies / rope.factor;
    case Rope::Scaling::kLlama3:
      break;
  }
  // Long waves are stretched by the factor, short ones are kept, those between are interpolated.
  const double context = static_cast<double>(rope.original_context);
  const at::Tensor wavelengths = 2 * M_PI / frequencies;
  const at::Tensor stretched = frequencies / rope.factor;
  const at::Tensor smooth =
      (context / wavelengths - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
  const at::Tensor between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies;
  const at::Tensor is_long = wavelengths > context / rope.low_frequency_factor;
  const at::Tensor is_short = wavelengths < context / rope.high_frequency_factor;
  return at::where(is_long, stretched, at::where(is_short, frequencies, between));
}

RotaryTable MakeRotaryTable(const Rope& rope, int64_t head_width, int64_t positions, const at::TensorOptions& options) {
  c10::NoGradGuard no_grad;
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), RotaryFrequencies(rope, head_width));
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const at::ScalarType stored = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto rounded = [&](const at::Tensor& values) { return values.to(type).to(stored).to(options.device()); };
  return {.cosines = rounded(angles.cos()), .sines = rounded(angles.sin())};
}

RotaryTable RowsOf(const RotaryTable& table, const at::Tensor& positions) {
  return {.cosines = table.cosines.index_select(0, positions), .sines = table.sines.index_select(0, positions)};
}

at::Tensor Rotate(const at::Tensor& x, const RotaryTable& table, const at::Tensor& positions) {
  const bool has_kernel = x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  const at::Tensor dense = x.contiguous();
  if (!has_kernel) return RotateByLibTorch(dense, table, positions);
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) {
    return RotateDense(dense, table.cosines, table.sines, positions, 1);
  }
  const auto given = positions.defined() ? std::optional<at::Tensor>(positions) : std::nullopt;
  return RotaryFunction::apply(dense, table.cosines, table.sines, given);
}

}  // namespace trainyard
