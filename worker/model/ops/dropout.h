// Dropout whose mask depends on what an element is, and not on where or when it is computed: it is a function of
// (seed, step, sample, unit, site, position in the sample). So micro-batches of another size, a rank with a part of the
// heads, tokens or columns, a recomputed unit and any number of threads drop the same elements. No mask is
// stored: backward computes it again. Philox4x32-10 encrypts these numbers (dropout_kernel.h), all of which fit its
// key and counter, so no two elements of a run use the same random bits.
//
// On a CPU it uses vectorised loops; on other devices it uses integer operations of LibTorch, which give the same bits
// and are slower than LibTorch's own dropout.
//
// Thread-safe. Errors are thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/model/model.h"

namespace trainyard {

// Where in a unit elements are dropped. The numbers are part of the masks: changing them changes the results of jobs.
enum class DropoutSite : uint8_t {
  kEmbedding = 0,
  kAttentionWeights = 1,
  kAttentionOutput = 2,
  kMlpOutput = 3,
  kAdapter = 16,  // the input of the adapter of projection 0 of a block; then one for each projection
};

// The dropout of one unit in one pass.
struct UnitDropout {
  double rate = 0;  // the probability that an element is dropped, in [0, 1); 0: nothing is dropped
  DropoutKey key = {};
  int unit = 0;  // its number in the whole model; below 2^16
};

// Without a key, nothing is dropped.
inline UnitDropout DropoutOf(const std::optional<DropoutKey>& key, int unit, double rate) {
  return key.has_value() ? UnitDropout{.rate = rate, .key = *key, .unit = unit} : UnitDropout{};
}

// Which elements of each whole sample a tensor [samples, .., columns] has. The rows of the tensor are counted over all
// dimensions between the first and the last. Row r begins at position first + r x row_stride of the sample, whose
// positions are in row-major order.
//   all of it                                    {}
//   heads from h of weights [heads, rows, cols]  {.first = h x rows x cols}
//   tokens from t of [tokens, width]             {.first = t x width}
//   columns from c of [tokens, width]            {.first = c, .row_stride = width}
// With a sample_size the tensor is [rows, columns] and its elements follow one another from position `first` on,
// through the samples:
//   rows from r of [samples x tokens, width]     {.first = r x width, .sample_size = tokens x width}
struct SampleSlice {
  int64_t first = 0;
  int64_t row_stride = 0;   // 0: the number of columns
  int64_t sample_size = 0;  // elements of a whole sample; 0: the tensor has an equal part of each sample
};

// Returns `x` if the rate is 0, and otherwise a dense tensor in which dropped elements are multiplied by 0, others by
// 1 / (1 - rate). Without a sample_size, x[b] is of sample key.first_sample + b. The result can be differentiated any
// number of times. REQUIRES: the type is fp64, fp32, bf16 or fp16; samples of a step < 2^24; elements of a whole sample
// < 2^42; steps < 2^40.
at::Tensor Drop(const at::Tensor& x, const UnitDropout& dropout, DropoutSite site, const SampleSlice& slice = {});

// This function lets tests choose the kernel, such as `kLibTorch` on a CPU.
enum class DropoutKernel { kLibTorch, kOwn };
at::Tensor DropBy(DropoutKernel kernel, const at::Tensor& x, const UnitDropout& dropout, DropoutSite site,
                  const SampleSlice& slice = {});

}  // namespace trainyard
