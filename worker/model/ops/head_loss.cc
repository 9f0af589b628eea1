#include "worker/model/ops/head_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "models/head_loss_limits.h"
#include "worker/model/ops/products.h"
#include "worker/model/ops/row_cross_entropy.h"

namespace trainyard {
namespace {

// Rows whose scores are computed together.
int64_t RowsAtATime(const at::Tensor& weight, int64_t max_elements) {
  return std::max<int64_t>(1, max_elements / weight.size(0));
}

// Calls `run(first, rows)` for each piece of `rows`.
template <typename Run>
void ForPieces(int64_t rows, int64_t at_a_time, const Run& run) {
  for (int64_t first = 0; first < rows; first += at_a_time) run(first, std::min(at_a_time, rows - first));
}

// The type of the loss of scores that are rounded to `output`. The loss is the sum of thousands of terms: in fp16 it
// would overflow, and in bf16 it would keep 8 bits.
at::ScalarType LossTypeOf(at::ScalarType output) { return output == at::kDouble ? at::kDouble : at::kFloat; }

// Returns the scores, rounded to `output`, in the type of the loss.
at::Tensor ScoresOf(const at::Tensor& x, const at::Tensor& weight, at::ScalarType output) {
  return Product(x, weight, /*transposed=*/true).to(output).to(LossTypeOf(output));
}

// Returns the loss; writes the logarithms of the sums of exponentials to `log_sums`, [rows].
at::Tensor SumLosses(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, at::ScalarType output,
                     int64_t at_a_time, const at::Tensor& log_sums) {
  at::Tensor loss = at::zeros({}, log_sums.options());
  ForPieces(x.size(0), at_a_time, [&](int64_t first, int64_t rows) {
    const at::Tensor scores = ScoresOf(x.narrow(0, first, rows), weight, output);
    const at::Tensor target = targets.narrow(0, first, rows), sums = at::logsumexp(scores, {1});
    const at::Tensor picked = scores.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
    loss += (sums - picked).masked_fill(target.lt(0), 0).sum();
    log_sums.narrow(0, first, rows).copy_(sums);
  });
  return loss;
}

struct HeadLossFunction : torch::autograd::Function<HeadLossFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kNumInputs = 7 };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                            at::ScalarType output, int64_t at_a_time, int64_t sink, int64_t weight_number) {
    at::Tensor log_sums = at::empty({x.size(0)}, x.options().dtype(LossTypeOf(output)));
    at::Tensor loss = SumLosses(x, weight, targets, output, at_a_time, log_sums);
    context->save_for_backward({x, weight, targets, log_sums});
    context->saved_data["output"] = static_cast<int64_t>(output);
    context->saved_data["at_a_time"] = at_a_time;
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
    return loss;
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &targets = saved[2], &log_sums = saved[3];
    auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
    const int number = static_cast<int>(context->saved_data["weight"].toInt());
    const auto output = static_cast<at::ScalarType>(context->saved_data["output"].toInt());
    torch::autograd::tensor_list result(kNumInputs);
    if (context->needs_input_grad(kX)) result[kX] = at::empty_like(x);
    GradientSink::Place place;
    if (context->needs_input_grad(kWeight)) {
      if (sink != nullptr) place = sink->Claim(number);
      if (!place.tensor.defined()) {
        // 16-bit gradients are summed in fp32.
        const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
        result[kWeight] = at::empty(weight.sizes(), weight.options().dtype(type));
      }
    }
    const int64_t at_a_time = context->saved_data["at_a_time"].toInt();
    // A sum of 16 bits would lose most of what many pieces of rows add to it.
    const bool by_columns = place.tensor.defined() && place.tensor.element_size() == 2 && x.size(0) > at_a_time;
    if (by_columns) WriteByColumns(saved, gradients[0], output, at_a_time, place);
    const at::Tensor to = by_columns ? at::Tensor() : place.tensor.defined() ? place.tensor : result[kWeight];
    bool overwrites = place.overwrites;
    const int64_t rows_left = to.defined() || result[kX].defined() ? x.size(0) : 0;
    ForPieces(rows_left, at_a_time, [&](int64_t first, int64_t rows) {
      const at::Tensor part = x.narrow(0, first, rows), target = targets.narrow(0, first, rows).unsqueeze(1);
      at::Tensor scores = ScoresOf(part, weight, output);
      scores.sub_(log_sums.narrow(0, first, rows).unsqueeze(1)).exp_();
      scores.scatter_add_(1, target.clamp_min(0), at::full_like(target, -1, scores.options()));
      scores.mul_(gradients[0]).masked_fill_(target.lt(0), 0);
      const at::Tensor grad = scores.to(x.scalar_type());
      if (to.defined()) WriteTransposedProduct(grad, part, to, overwrites);
      overwrites = false;
      if (result[kX].defined()) result[kX].narrow(0, first, rows).copy_(Product(grad, weight, /*transposed=*/false));
    });
    if (place.tensor.defined()) {
      sink->Done(number);
    } else if (result[kWeight].defined()) {
      result[kWeight] = result[kWeight].to(weight.scalar_type());
    }
    return result;
  }

 private:
  // Writes or adds the gradient of the weight for a part of the vocabulary at a time, each by one product of all rows,
  // so that each element is rounded once. Costs one more product than pieces of rows, but needs no more memory.
  static void WriteByColumns(const std::vector<at::Tensor>& saved, const at::Tensor& seed, at::ScalarType output,
                             int64_t at_a_time, const GradientSink::Place& place) {
    const at::Tensor &x = saved[0], &weight = saved[1], &targets = saved[2], &log_sums = saved[3];
    const int64_t vocabulary = weight.size(0);
    ForPieces(vocabulary, std::max<int64_t>(1, at_a_time * vocabulary / x.size(0)), [&](int64_t first, int64_t count) {
      at::Tensor scores = ScoresOf(x, weight.narrow(0, first, count), output);
      scores.sub_(log_sums.unsqueeze(1)).exp_();
      const at::Tensor numbers = (targets - first).unsqueeze(1);
      const at::Tensor has_target = numbers.ge(0).logical_and(numbers.lt(count));
      scores.scatter_add_(1, numbers.clamp_min(0).clamp_max(count - 1), has_target.to(scores.scalar_type()).neg());
      scores.mul_(seed).masked_fill_(targets.lt(0).unsqueeze(1), 0);
      WriteTransposedProduct(scores.to(x.scalar_type()), x, place.tensor.narrow(0, first, count), place.overwrites);
    });
  }
};

// A GPU multiplies matrices much faster if all their sizes are multiples of this.
constexpr int64_t kAlignment = 64;
// fp16 gradients of scores are multiplied by this, because most probabilities of a large vocabulary are too small for
// the normal numbers of fp16.
constexpr double kHalfFactor = 64;

double FactorOf(at::ScalarType type) { return type == at::kHalf ? kHalfFactor : 1; }

int64_t AlignedUp(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

// Returns the weight with rows of 0 at the end, so that it has a multiple of kAlignment rows.
at::Tensor Padded(const at::Tensor& weight) {
  const int64_t rows = weight.size(0), padded = AlignedUp(rows);
  if (padded == rows) return weight;
  at::Tensor whole = at::empty({padded, weight.size(1)}, weight.options());
  whole.narrow(0, 0, rows).copy_(weight);
  whole.narrow(0, rows, padded - rows).zero_();
  return whole;
}

// Where the gradients of pieces of rows are written or added; undefined: not needed.
struct PieceGradients {
  at::Tensor x = {};       // [rows, in]
  at::Tensor weight = {};  // like the weight, in the type of the sums; may lack the rows of the padding
  at::Tensor seed = {};    // a factor for `weight`; undefined: 1
  bool overwrites = true;
};

// Returns `x` times a scalar of a wider type, rounded once.
at::Tensor Times(const at::Tensor& x, const at::Tensor& scalar) {
  return x.to(scalar.scalar_type()).mul(scalar).to(x.scalar_type());
}

// Returns the losses of the rows, and computes gradients, which are multiplied by FactorOf.
at::Tensor RunPiece(const at::Tensor& x, const at::Tensor& padded_weight, int64_t columns, const at::Tensor& targets,
                    const PieceGradients& gradients) {
  const bool needs_gradients = gradients.x.defined() || gradients.weight.defined();
  const at::Tensor scores = at::mm(x, padded_weight.t());
  at::Tensor losses = CrossEntropyOfRows(scores, targets, columns, FactorOf(x.scalar_type()), needs_gradients);
  if (!needs_gradients) return losses;
  const at::Tensor& of_scores = scores;  // CrossEntropyOfRows has replaced the scores by their gradients
  if (gradients.weight.defined()) {
    WriteTransposedProduct(of_scores.narrow(1, 0, gradients.weight.size(0)),
                           gradients.seed.defined() ? Times(x, gradients.seed) : x, gradients.weight,
                           gradients.overwrites);
  }
  at::Tensor grad_x = gradients.x;
  if (grad_x.defined()) at::mm_out(grad_x, of_scores, padded_weight);
  return losses;
}

// The loss with padded sizes. If there is no sink, so that the gradient of the weight needs memory of its own, or if
// the weight needs no gradient, forward computes the gradients, and backward only multiplies them by its seed.
// Otherwise backward computes the scores again.
struct PaddedHeadLossFunction : torch::autograd::Function<PaddedHeadLossFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kNumInputs = 9 };
  enum Saved { kTargets = 2, kGradX, kGradWeight };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                            at::ScalarType output, int64_t at_a_time, int64_t sink, int64_t weight_number, bool needs_x,
                            bool needs_weight) {
    const bool computes = needs_weight ? sink == 0 : needs_x;
    const at::Tensor padded = Padded(weight);
    PieceGradients whole;
    if (computes && needs_x) whole.x = at::empty_like(x);
    if (computes && needs_weight) whole.weight = at::empty(padded.sizes(), OptionsOfSums(x));
    const at::Tensor loss = RunPieces(x, padded, weight.size(0), targets, at_a_time, whole);
    const at::Tensor none;
    context->save_for_backward({computes ? none : x, weight, computes ? none : targets, whole.x, whole.weight});
    context->saved_data["computed"] = computes;
    context->saved_data["at_a_time"] = at_a_time;
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
    return loss.to(LossTypeOf(output));
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[kWeight];
    const at::ScalarType sum_type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor seed = gradients[0].to(sum_type).div(FactorOf(weight.scalar_type()));
    torch::autograd::tensor_list result(kNumInputs);
    if (context->saved_data["computed"].toBool()) {
      result[kX] = saved[kGradX];
      if (saved[kGradWeight].defined()) {
        result[kWeight] = saved[kGradWeight].narrow(0, 0, weight.size(0)).mul_(seed).to(weight.scalar_type());
      }
    } else {
      Recompute(*context, saved, seed, result);
    }
    if (result[kX].defined()) result[kX] = Times(result[kX], seed);
    return result;
  }

 private:
  static at::TensorOptions OptionsOfSums(const at::Tensor& x) {
    return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }

  // Returns the sum of the losses.
  static at::Tensor RunPieces(const at::Tensor& x, const at::Tensor& padded, int64_t columns, const at::Tensor& targets,
                              int64_t at_a_time, PieceGradients whole) {
    at::Tensor loss = at::zeros({}, OptionsOfSums(x));
    ForPieces(x.size(0), at_a_time, [&](int64_t first, int64_t rows) {
      PieceGradients piece = whole;
      if (whole.x.defined()) piece.x = whole.x.narrow(0, first, rows);
      loss += RunPiece(x.narrow(0, first, rows), padded, columns, targets.narrow(0, first, rows), piece).sum();
      whole.overwrites = false;
    });
    return loss;
  }

  static void Recompute(Context& context, const std::vector<at::Tensor>& saved, const at::Tensor& seed,
                        torch::autograd::tensor_list& result) {
    const at::Tensor &x = saved[kX], &weight = saved[kWeight];
    auto* sink = reinterpret_cast<GradientSink*>(context.saved_data["sink"].toInt());
    const int number = static_cast<int>(context.saved_data["weight"].toInt());
    PieceGradients whole;
    if (context.needs_input_grad(kX)) whole.x = result[kX] = at::empty_like(x);
    GradientSink::Place place;
    if (context.needs_input_grad(kWeight)) place = sink->Claim(number);
    // In fp16, products with the seed could be too small, so the sum is multiplied by the seed.
    const bool writes_to_place = place.tensor.defined() && x.scalar_type() != at::kHalf;
    if (writes_to_place) {
      whole.weight = place.tensor;
      whole.overwrites = place.overwrites;
      whole.seed = seed;
    } else if (context.needs_input_grad(kWeight)) {
      whole.weight = at::empty(weight.sizes(), OptionsOfSums(x));
    }
    RunPieces(x, Padded(weight), weight.size(0), saved[kTargets], context.saved_data["at_a_time"].toInt(), whole);
    if (!whole.weight.defined()) return;
    if (!writes_to_place) whole.weight.mul_(seed);
    if (!place.tensor.defined()) {
      result[kWeight] = whole.weight.to(weight.scalar_type());
      return;
    }
    if (!writes_to_place) place.overwrites ? place.tensor.copy_(whole.weight) : place.tensor.add_(whole.weight);
    sink->Done(number);
  }
};

}  // namespace

int64_t HeadLossElements(const at::Device& device) {
  return device.is_cpu() ? kHeadLossElements : kHeadLossElementsOnGpu;
}

at::Tensor HeadLossBy(HeadLossKernel kernel, const at::Tensor& x, const NumberedTensor& weight,
                      const at::Tensor& targets, std::optional<at::ScalarType> output, GradientSink* sink,
                      std::optional<int64_t> max_elements) {
  const at::Tensor rows = x.contiguous(), flat_targets = targets.reshape({-1});
  const at::ScalarType type = output.value_or(x.scalar_type());
  int64_t at_a_time = RowsAtATime(weight.tensor, max_elements.value_or(HeadLossElements(x.device())));
  if (kernel == HeadLossKernel::kOwn) {
    return HeadLossFunction::apply(rows, weight.tensor, flat_targets, type, at_a_time, reinterpret_cast<int64_t>(sink),
                                   int64_t{weight.number});
  }
  if (at_a_time >= kAlignment) {  // pieces of equal size keep a GPU busy until the end
    const int64_t pieces = (rows.size(0) + at_a_time - 1) / at_a_time;
    at_a_time = AlignedUp((rows.size(0) + pieces - 1) / std::max<int64_t>(1, pieces));
  }
  const bool differentiates = c10::GradMode::is_enabled();
  return PaddedHeadLossFunction::apply(
      rows, weight.tensor, flat_targets, type, at_a_time, reinterpret_cast<int64_t>(sink), int64_t{weight.number},
      differentiates && x.requires_grad(), differentiates && weight.tensor.requires_grad());
}

at::Tensor HeadLoss(const at::Tensor& x, const NumberedTensor& weight, const at::Tensor& targets,
                    std::optional<at::ScalarType> output, GradientSink* sink, std::optional<int64_t> max_elements) {
  const HeadLossKernel kernel = x.is_cpu() ? HeadLossKernel::kOwn : HeadLossKernel::kPadded;
  return HeadLossBy(kernel, x, weight, targets, output, sink, max_elements);
}

at::Tensor LossOfScores(const at::Tensor& scores, const at::Tensor& targets) {
  return at::cross_entropy_loss(scores.to(LossTypeOf(scores.scalar_type())), targets.reshape({-1}), {},
                                at::Reduction::Sum, /*ignore_index=*/-1);
}

}  // namespace trainyard
