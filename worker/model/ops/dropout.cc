#include "worker/model/ops/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "worker/model/ops/dropout_kernel.h"

namespace trainyard {
namespace {

constexpr int64_t kDropoutGrain = int64_t{1} << 14;  // fewer elements are not worth another thread

// Everything that decides which elements of a tensor [samples, .., columns] are dropped.
struct DropoutMask {
  double rate = 0;
  PhiloxKey key = {};
  PhiloxCounter counter = {};  // of element 0 of sample 0
  int64_t first_sample = 0;
  SampleSlice slice = {};
  DropoutKernel kernel = DropoutKernel::kOwn;

  // The counter of element 0 of sample `b` of the tensor.
  PhiloxCounter CounterOf(int64_t b) const {
    PhiloxCounter of_sample = counter;
    of_sample[1] |= static_cast<uint32_t>(first_sample + b) << 8;
    return of_sample;
  }
  uint32_t keep_below() const {
    return static_cast<uint32_t>(std::min(std::ldexp(1 - rate, 32), std::ldexp(1, 32) - 1));
  }
  double scale() const { return 1 / (1 - rate); }
};

DropoutMask MakeMask(const UnitDropout& dropout, DropoutSite site, const SampleSlice& slice, DropoutKernel kernel) {
  const DropoutKey& key = dropout.key;
  TORCH_CHECK(dropout.rate >= 0 && dropout.rate < 1, "a dropout rate must be in [0, 1), found ", dropout.rate);
  TORCH_CHECK(key.step < uint64_t{1} << 40, "dropout of step ", key.step, ": must be below 2^40");
  TORCH_CHECK(dropout.unit >= 0 && dropout.unit < 1 << 16, "dropout of unit ", dropout.unit, ": must be below 2^16");
  // Counter: 40 bits for the position (4 elements share a counter), 24 for the sample, 40 for the step, 8 for the site,
  // 16 for the unit.
  const uint32_t high = static_cast<uint32_t>(key.step >> 32) | static_cast<uint32_t>(site) << 8 |
                        static_cast<uint32_t>(dropout.unit) << 16;
  return {.rate = dropout.rate,
          .key = {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)},
          .counter = {0, 0, static_cast<uint32_t>(key.step), high},
          .first_sample = static_cast<int64_t>(key.first_sample),
          .slice = slice,
          .kernel = kernel};
}

// How the elements of a tensor are divided into samples of `rows` rows; the position of row r in its whole sample is
// first + r x stride. With SampleSlice::sample_size, each whole sample is one row, and the tensor has consecutive
// elements of `samples` samples, beginning with element `skipped` of the first one.
struct SampleRows {
  int64_t samples = 0, rows = 0, columns = 0, stride = 0;
  int64_t first = 0, skipped = 0;

  int64_t sample_size() const { return rows * columns; }
  int64_t PositionOf(int64_t element) const { return first + element / columns * stride + element % columns; }
};

SampleRows SampleRowsOf(const at::Tensor& x, const SampleSlice& slice) {
  if (const int64_t size = slice.sample_size; size > 0) {
    return {.samples = (slice.first + x.numel() + size - 1) / size,
            .rows = 1,
            .columns = size,
            .stride = size,
            .skipped = slice.first};
  }
  const int64_t samples = x.size(0), columns = x.dim() > 1 ? x.size(-1) : 1;
  SampleRows rows{.samples = samples,
                  .rows = x.numel() / samples / columns,
                  .columns = columns,
                  .stride = slice.row_stride == 0 ? columns : slice.row_stride,
                  .first = slice.first};
  if (rows.stride == columns) {  // adjacent rows count as one
    rows.columns = rows.stride = rows.sample_size();
    rows.rows = 1;
  }
  return rows;
}

void DropOnCpu(const DropoutMask& mask, const SampleRows& rows, const at::Tensor& x, const at::Tensor& y) {
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr());
  auto* to = static_cast<std::byte*>(y.mutable_data_ptr());
  const int64_t bytes = static_cast<int64_t>(x.element_size());
  at::parallel_for(0, x.numel(), kDropoutGrain, [&](int64_t begin, int64_t end) {
    DropoutRun run{.type = x.scalar_type(), .key = mask.key, .keep_below = mask.keep_below(), .scale = mask.scale()};
    for (int64_t i = begin; i < end; i += run.size) {
      const int64_t in_samples = rows.skipped + i;
      const int64_t element = in_samples % rows.sample_size();  // the element's index in its sample
      run.x = from + i * bytes;
      run.y = to + i * bytes;
      run.size = std::min(end - i, rows.columns - element % rows.columns);
      run.position = static_cast<uint64_t>(rows.PositionOf(element));
      run.counter = mask.CounterOf(in_samples / rows.sample_size());
      RunDropout(run);
    }
  });
}

// A product of 32-bit numbers in two halves, because the whole product would overflow the int64 of the tensors.
struct WideProduct {
  at::Tensor low, high;  // 32 bits each
};
WideProduct MultiplyWords(const at::Tensor& x, int64_t factor) {
  const at::Tensor of_low = x.bitwise_and(0xffff) * factor, of_high = x.__rshift__(16) * factor;
  return {.low = (of_low + of_high.bitwise_and(0xffff).__lshift__(16)).bitwise_and(0xffffffff),
          .high = (of_low.__rshift__(16) + of_high).__rshift__(16)};
}

// The random bits of blocks [first, last) of each sample, [samples, elements], as the kernel computes them.
at::Tensor BitsOfBlocks(const DropoutMask& mask, int64_t samples, int64_t first, int64_t last, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor number = at::arange(first * kPhiloxLanes, last * kPhiloxLanes, options).unsqueeze(0);
  const at::Tensor sample = at::arange(mask.first_sample, mask.first_sample + samples, options).unsqueeze(1);
  at::Tensor a = number.bitwise_and(0xffffffff), b = number.__rshift__(32) + sample.__lshift__(8),
             c = at::full({1, 1}, static_cast<int64_t>(mask.counter[2]), options),
             d = at::full({1, 1}, static_cast<int64_t>(mask.counter[3]), options);
  PhiloxKey key = mask.key;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const WideProduct of_a = MultiplyWords(a, kPhiloxFactors[0]), of_c = MultiplyWords(c, kPhiloxFactors[1]);
    a = of_c.high.bitwise_xor(b).bitwise_xor(static_cast<int64_t>(key[0]));
    b = of_c.low;
    c = of_a.high.bitwise_xor(d).bitwise_xor(static_cast<int64_t>(key[1]));
    d = of_a.low;
    for (size_t i = 0; i < key.size(); ++i) key[i] += kPhiloxKeySteps[i];
  }
  const auto by_blocks = [&](const at::Tensor& word) { return word.view({samples, -1, kPhiloxLanes}); };
  return at::stack({by_blocks(a), by_blocks(b), by_blocks(c), by_blocks(d)}, /*dim=*/2).view({samples, -1});
}

at::Tensor DropByLibTorch(const DropoutMask& mask, const SampleRows& rows, const at::Tensor& x) {
  const int64_t first_block = rows.first / kPhiloxBlock;
  const int64_t last_block = rows.PositionOf(rows.sample_size() - 1) / kPhiloxBlock + 1;
  const at::Tensor bits = BitsOfBlocks(mask, rows.samples, first_block, last_block, x.device());
  const int64_t skipped = rows.first - first_block * kPhiloxBlock;
  const at::Tensor of_elements =
      bits.as_strided({rows.samples, rows.rows, rows.columns}, {bits.size(1), rows.stride, 1}, skipped);
  const at::Tensor kept = of_elements < static_cast<int64_t>(mask.keep_below());
  const at::Tensor of_x = mask.slice.sample_size > 0 ? kept.reshape({-1}).narrow(0, rows.skipped, x.numel()) : kept;
  return x * of_x.view(x.sizes()).to(x.scalar_type()) * mask.scale();
}

// Checks what Drop requires of the type, the samples and the positions. MakeMask has checked the rate, step and unit.
void CheckLimits(const DropoutMask& mask, const SampleRows& rows, at::ScalarType type) {
  const int64_t last_sample = mask.first_sample + rows.samples - 1;
  const int64_t last_position = rows.PositionOf(rows.sample_size() - 1);
  TORCH_CHECK(type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
              "dropout of type ", type, ": must be fp64, fp32, bf16 or fp16");
  TORCH_CHECK(last_sample < int64_t{1} << 24, "dropout of sample ", last_sample, " of a step: must be below 2^24");
  TORCH_CHECK(rows.first >= 0 && last_position < int64_t{1} << 42, "dropout of elements at positions ", rows.first,
              " to ", last_position, " of a sample: must be in [0, 2^42)");
}

at::Tensor ApplyMask(const DropoutMask& mask, const at::Tensor& x);

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const DropoutMask& mask) {
    context->saved_data["rate"] = mask.rate;
    context->saved_data["numbers"] = std::vector<int64_t>{mask.key[0],
                                                          mask.key[1],
                                                          mask.counter[2],
                                                          mask.counter[3],
                                                          mask.first_sample,
                                                          mask.slice.first,
                                                          mask.slice.row_stride,
                                                          mask.slice.sample_size,
                                                          static_cast<int64_t>(mask.kernel)};
    const SampleRows rows = SampleRowsOf(x, mask.slice);
    CheckLimits(mask, rows, x.scalar_type());
    if (mask.kernel == DropoutKernel::kLibTorch || !x.is_cpu()) return DropByLibTorch(mask, rows, x);
    at::Tensor y = at::empty_like(x);
    DropOnCpu(mask, rows, x, y);
    return y;
  }
  // Dropout is linear: the gradient is dropped like x.
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const std::vector<int64_t> numbers = context->saved_data["numbers"].toIntVector();
    const auto word = [&](size_t i) { return static_cast<uint32_t>(numbers[i]); };
    const DropoutMask mask{.rate = context->saved_data["rate"].toDouble(),
                           .key = {word(0), word(1)},
                           .counter = {0, 0, word(2), word(3)},
                           .first_sample = numbers[4],
                           .slice = {.first = numbers[5], .row_stride = numbers[6], .sample_size = numbers[7]},
                           .kernel = static_cast<DropoutKernel>(numbers[8])};
    return {ApplyMask(mask, gradients[0]), at::Tensor()};
  }
};

at::Tensor ApplyMask(const DropoutMask& mask, const at::Tensor& x) {
  return DropoutFunction::apply(x.contiguous(), mask);
}

}  // namespace

at::Tensor DropBy(DropoutKernel kernel, const at::Tensor& x, const UnitDropout& dropout, DropoutSite site,
                  const SampleSlice& slice) {
  if (dropout.rate == 0 || x.numel() == 0) return x;
  return ApplyMask(MakeMask(dropout, site, slice, kernel), x);
}

at::Tensor Drop(const at::Tensor& x, const UnitDropout& dropout, DropoutSite site, const SampleSlice& slice) {
  return DropBy(x.is_cpu() ? DropoutKernel::kOwn : DropoutKernel::kLibTorch, x, dropout, site, slice);
}

}  // namespace trainyard
