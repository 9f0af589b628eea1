#include "worker/model/ops/vocabulary_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/products.h"

namespace trainyard {
namespace {

constexpr int64_t kNotHeld = -1;

// For each token, the index of its row among the `count` rows from `first` on; kNotHeld if another rank, or none, has
// the row.
at::Tensor NumbersAmong(const at::Tensor& tokens, int64_t first, int64_t count) {
  const at::Tensor numbers = tokens - first;
  return numbers.masked_fill_(numbers.lt(0).logical_or(numbers.ge(count)), kNotHeld);
}

// What a pass needs in addition to weight and tokens.
struct EmbedPass final : torch::CustomClassHolder {
  int64_t first = 0;
  TensorGroup* group = nullptr;
  std::optional<SequencePart> part = {};
};

struct EmbedFunction : torch::autograd::Function<EmbedFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& tokens, const c10::intrusive_ptr<EmbedPass>& pass) {
    const std::optional<SequencePart>& part = pass->part;
    at::Tensor numbers = NumbersAmong(tokens, pass->first, weight.size(0));
    if (part.has_value()) numbers = PadRows(*part, numbers, kNotHeld);
    at::Tensor y = at::embedding(weight, numbers.clamp_min(0));
    y.masked_fill_(numbers.lt(0).unsqueeze(-1), 0);
    context->save_for_backward({numbers});
    context->saved_data["rows"] = weight.size(0);
    if (!part.has_value()) {
      pass->group->Sum(y);
      return y;
    }
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    at::Tensor own = StartScatterRows(*part, y);
    pass->group->Wait();
    return own;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const at::Tensor numbers = context->get_saved_variables()[0];
    at::Tensor gradient = gradients[0];
    if (const auto found = context->saved_data.find("pass"); found != context->saved_data.end()) {
      const auto pass = c10::static_intrusive_pointer_cast<EmbedPass>(found->second.toCapsule());
      gradient = StartGatherRows(*pass->part, gradient.contiguous());
      pass->group->Wait();
    }
    return {at::embedding_dense_backward(gradient, numbers, context->saved_data["rows"].toInt(),
                                         /*padding_idx=*/kNotHeld, /*scale_grad_by_freq=*/false),
            at::Tensor(), at::Tensor()};
  }
};

// What a pass needs in addition to x and the weight.
struct LossPass final : torch::CustomClassHolder {
  at::Tensor targets, numbers;  // [rows]; `numbers` has the results of NumbersAmong
  at::ScalarType output = at::kFloat, sums = at::kFloat;
  int64_t at_a_time = 1;  // rows of scores
  GradientSink* sink = nullptr;
  int weight_number = -1;
  TensorGroup* group = nullptr;
  std::optional<SequencePart> part = {};
  bool keeps = false;

  // Set by forward. `log_sums` has for each row the logarithm of the sum of exponentials. If scores are kept,
  // `exponentials` has the exponentials of all rows, which are probabilities once they are multiplied by `factors`.
  at::Tensor log_sums = {}, exponentials = {}, factors = {};

  at::Tensor ScoresOf(const at::Tensor& x, const at::Tensor& weight) const {
    return Product(x, weight, /*transposed=*/true).to(output).to(sums);
  }
  // Calls `run(first, count)` for a few rows at a time.
  template <typename Run>
  void ForPieces(const Run& run) const {
    const int64_t rows = targets.size(0);
    for (int64_t first = 0; first < rows; first += at_a_time) run(first, std::min(at_a_time, rows - first));
  }
};

// Fills `statistics`, [3, rows], from this rank's scores of each row: the highest score, the sum of the exponentials of
// the differences from it, and the score of the target, or 0 if another rank has the target.
void Measure(LossPass& pass, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics) {
  pass.ForPieces([&](int64_t first, int64_t count) {
    const at::Tensor scores = pass.ScoresOf(x.narrow(0, first, count), weight);
    const at::Tensor numbers = pass.numbers.narrow(0, first, count), of_rows = statistics.narrow(1, first, count);
    const at::Tensor highest = of_rows.select(0, 0);
    highest.copy_(scores.amax(1));
    of_rows.select(0, 2).copy_(
        scores.gather(1, numbers.clamp_min(0).unsqueeze(1)).squeeze(1).masked_fill_(numbers.lt(0), 0));
    of_rows.select(0, 1).copy_(scores.sub_(highest.unsqueeze(1)).exp_().sum(1));
    if (pass.keeps) pass.exponentials = scores;  // there is only one piece
  });
}

struct VocabularyLossFunction : torch::autograd::Function<VocabularyLossFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kNumInputs = 3 };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const c10::intrusive_ptr<LossPass>& pass) {
    const auto options = x.options().dtype(pass->sums);
    const int64_t rows = pass->targets.size(0);
    const at::Tensor own = at::empty({3, rows}, options);
    const at::Tensor all = at::empty({pass->group->size(), 3, rows}, options);
    Measure(*pass, pass->part.has_value() ? GatherRows(*pass->part, x) : x, weight, own);
    pass->group->AllGather(all, own);

    const at::Tensor of_ranks = all.select(1, 0), highest = of_ranks.amax(0);
    pass->log_sums = (all.select(1, 1) * (of_ranks - highest).exp()).sum(0).log_().add_(highest);
    if (pass->keeps) pass->factors = own.select(0, 0).sub(pass->log_sums).exp_();
    const at::Tensor losses = pass->log_sums - all.select(1, 2).sum(0);
    context->save_for_backward({x, weight});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return losses.masked_fill(pass->targets.lt(0), 0).sum();
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto pass = c10::static_intrusive_pointer_cast<LossPass>(context->saved_data["pass"].toCapsule());
    const auto saved = context->get_saved_variables();
    const std::optional<SequencePart>& part = pass->part;
    const at::Tensor x = part.has_value() ? GatherRows(*part, saved[kX]) : saved[kX];
    const at::Tensor& weight = saved[kWeight];
    torch::autograd::tensor_list result(kNumInputs);
    at::Tensor grad_x;
    if (context->needs_input_grad(kX)) {
      grad_x = part.has_value() ? NewRows(*part, x.size(1), x.options()) : at::empty_like(x);
    }
    GradientSink::Place place;
    if (context->needs_input_grad(kWeight)) {
      if (pass->sink != nullptr) place = pass->sink->Claim(pass->weight_number);
      // 16-bit gradients are summed in fp32.
      if (!place.tensor.defined()) result[kWeight] = at::empty(weight.sizes(), weight.options().dtype(pass->sums));
    }
    // A sum of 16 bits would lose most of what many pieces of rows add to it.
    const bool by_columns = place.tensor.defined() && place.tensor.element_size() == 2 && x.size(0) > pass->at_a_time;
    const at::Tensor to = by_columns ? at::Tensor() : place.tensor.defined() ? place.tensor : result[kWeight];
    bool overwrites = place.overwrites;
    const at::Tensor weights_of_rows = pass->targets.ge(0).to(pass->sums).mul_(gradients[0]);
    pass->ForPieces([&](int64_t first, int64_t count) {
      const at::Tensor rows = x.narrow(0, first, count);
      const at::Tensor grad = GradientOfScores(*pass, rows, weight, weights_of_rows.narrow(0, first, count), first);
      if (grad_x.defined()) {
        WriteProduct(grad, weight, /*transposed=*/false, {}, {}, grad_x.narrow(0, first, count));
        if (first + count == x.size(0)) result[kX] = StartSumOf(*pass, grad_x);
      }
      if (to.defined()) WriteTransposedProduct(grad, rows, to, overwrites);
      overwrites = false;
    });
    if (by_columns) WriteByColumns(*pass, x, weight, weights_of_rows, place);
    if (place.tensor.defined()) pass->sink->Done(pass->weight_number);
    if (result[kWeight].defined()) result[kWeight] = result[kWeight].to(weight.scalar_type());
    if (result[kX].defined()) pass->group->Wait();
    return result;
  }

  // Writes or adds the gradient of the weight for a part of this rank's vocabulary at a time, each by one product of
  // all rows, so that each element is rounded once. Costs one more product than pieces of rows, but no more memory.
  static void WriteByColumns(const LossPass& pass, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& weights_of_rows, const GradientSink::Place& place) {
    const int64_t held = weight.size(0), columns = std::max<int64_t>(1, pass.at_a_time * held / x.size(0));
    for (int64_t first = 0; first < held; first += columns) {
      const int64_t count = std::min(columns, held - first);
      const at::Tensor scores = pass.ScoresOf(x, weight.narrow(0, first, count));
      scores.sub_(pass.log_sums.unsqueeze(1)).exp_().mul_(weights_of_rows.unsqueeze(1));
      SubtractTargets(scores, NumbersAmong(pass.numbers, first, count), weights_of_rows);
      WriteTransposedProduct(scores.to(x.scalar_type()), x, place.tensor.narrow(0, first, count), place.overwrites);
    }
  }

  // Subtracts the weight of each row from the score of its target. `numbers`: the column of the target; kNotHeld: none.
  static void SubtractTargets(const at::Tensor& scores, const at::Tensor& numbers, const at::Tensor& weights_of_rows) {
    scores.scatter_add_(1, numbers.clamp_min(0).unsqueeze(1),
                        weights_of_rows.neg().masked_fill_(numbers.lt(0), 0).unsqueeze(1));
  }

  // Returns the tensor that has the sum of the gradient of x, or this rank's part of it, after the group's Wait.
  static at::Tensor StartSumOf(const LossPass& pass, const at::Tensor& grad_x) {
    if (pass.part.has_value()) return StartScatterRows(*pass.part, grad_x);
    pass.group->StartSum(grad_x);
    return grad_x;
  }

  // The gradient of the scores of the rows from `first` on, in x's type. `weights_of_rows`: the weight of each row's
  // loss.
  static at::Tensor GradientOfScores(LossPass& pass, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& weights_of_rows, int64_t first) {
    const int64_t count = x.size(0);
    at::Tensor scores;
    if (pass.keeps) {
      scores = std::move(pass.exponentials);
      scores.mul_((pass.factors * weights_of_rows).unsqueeze(1));
    } else {
      scores = pass.ScoresOf(x, weight);
      scores.sub_(pass.log_sums.narrow(0, first, count).unsqueeze(1)).exp_().mul_(weights_of_rows.unsqueeze(1));
    }
    SubtractTargets(scores, pass.numbers.narrow(0, first, count), weights_of_rows);
    return scores.to(x.scalar_type());
  }
};

}  // namespace

at::Tensor EmbedVocabulary(const VocabularyRows& rows, const at::Tensor& tokens) {
  const auto pass = c10::make_intrusive<EmbedPass>();
  pass->first = rows.first;
  pass->group = rows.group;
  pass->part = rows.part;
  return EmbedFunction::apply(rows.weight.tensor, tokens, pass);
}

at::Tensor VocabularyLoss(const at::Tensor& x, const VocabularyRows& rows, const at::Tensor& targets,
                          std::optional<at::ScalarType> output, bool keeps_scores, GradientSink* sink,
                          std::optional<int64_t> max_elements) {
  const at::Tensor& weight = rows.weight.tensor;
  auto pass = c10::make_intrusive<LossPass>();
  pass->targets = targets.reshape({-1});
  pass->numbers = NumbersAmong(pass->targets, rows.first, weight.size(0));
  pass->output = output.value_or(x.scalar_type());
  pass->sums = pass->output == at::kDouble ? at::kDouble : at::kFloat;
  pass->sink = sink;
  pass->weight_number = rows.weight.number;
  pass->group = rows.group;
  pass->part = rows.part;
  const bool differentiates = c10::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  pass->keeps = keeps_scores && differentiates;
  const int64_t elements = max_elements.value_or(HeadLossElements(x.device()));
  pass->at_a_time = std::max<int64_t>(1, pass->keeps ? pass->targets.size(0) : elements / weight.size(0));
  return VocabularyLossFunction::apply(x.contiguous(), weight, pass);
}

}  // namespace trainyard
