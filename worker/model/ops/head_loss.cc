#include "worker/model/ops/head_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/model/ops/products.h"

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

at::Tensor ScoresOf(const at::Tensor& x, const at::Tensor& weight, at::ScalarType output) {
  return Product(x, weight, /*transposed=*/true).to(output);
}

// Returns the loss; writes the logarithms of the sums of exponentials to `log_sums`, [rows].
at::Tensor SumLosses(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, at::ScalarType output,
                     int64_t at_a_time, at::Tensor log_sums) {
  // Hundreds of pieces are added, too many for the precision of a 16-bit sum.
  const at::ScalarType sum_type = output == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor loss = at::zeros({}, x.options().dtype(sum_type));
  ForPieces(x.size(0), at_a_time, [&](int64_t first, int64_t rows) {
    const at::Tensor scores = ScoresOf(x.narrow(0, first, rows), weight, output);
    const at::Tensor target = targets.narrow(0, first, rows), sums = at::logsumexp(scores, {1});
    const at::Tensor picked = scores.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
    loss += (sums - picked).masked_fill(target.lt(0), 0).sum(sum_type);
    log_sums.narrow(0, first, rows).copy_(sums);
  });
  return loss.to(output);
}

struct HeadLossFunction : torch::autograd::Function<HeadLossFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kNumInputs = 7 };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                            at::ScalarType output, int64_t at_a_time, int64_t sink, int64_t weight_number) {
    at::Tensor log_sums = at::empty({x.size(0)}, x.options().dtype(output));
    at::Tensor loss = SumLosses(x, weight, targets, output, at_a_time, log_sums);
    context->save_for_backward({x, weight, targets, log_sums});
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
    const at::Tensor to = place.tensor.defined() ? place.tensor : result[kWeight];
    bool overwrites = place.overwrites;
    ForPieces(x.size(0), context->saved_data["at_a_time"].toInt(), [&](int64_t first, int64_t rows) {
      const at::Tensor part = x.narrow(0, first, rows), target = targets.narrow(0, first, rows).unsqueeze(1);
      at::Tensor scores = ScoresOf(part, weight, log_sums.scalar_type());
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
};

}  // namespace

at::Tensor HeadLoss(const at::Tensor& x, const NumberedTensor& weight, const at::Tensor& targets,
                    std::optional<at::ScalarType> output, GradientSink* sink, int64_t max_elements) {
  return HeadLossFunction::apply(x.contiguous(), weight.tensor, targets.reshape({-1}), output.value_or(x.scalar_type()),
                                 RowsAtATime(weight.tensor, max_elements), reinterpret_cast<int64_t>(sink),
                                 int64_t{weight.number});
}

}  // namespace trainyard
