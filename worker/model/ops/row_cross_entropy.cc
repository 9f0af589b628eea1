#include "worker/model/ops/row_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/exp.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace trainyard {
namespace {

// Computes the losses by kernels of LibTorch, for every device and type.
at::Tensor CrossEntropy(const at::Tensor& scores, const at::Tensor& targets, int64_t columns, double factor,
                        bool writes_gradients) {
  const at::Tensor target = targets.clamp_min(0).unsqueeze(1), has_none = targets.lt(0);
  scores.narrow(1, columns, scores.size(1) - columns).fill_(-std::numeric_limits<double>::infinity());
  at::Tensor logs = at::_log_softmax(scores.element_size() == 2 ? scores.to(at::kFloat) : scores, 1,
                                     /*half_to_float=*/false);
  at::Tensor losses = logs.gather(1, target).squeeze(1).neg_().masked_fill_(has_none, 0);
  if (!writes_gradients) return losses;
  // The gradient of the score of a target is its probability minus 1. expm1 subtracts the 1 before the result is
  // rounded to 16 bits.
  const at::Tensor of_targets = logs.gather(1, target).expm1_().mul_(factor).to(scores.scalar_type());
  at::Tensor to = scores;
  at::exp_out(to, factor == 1 ? logs : logs.add_(std::log(factor)));
  scores.scatter_(1, target, of_targets).masked_fill_(has_none.unsqueeze(1), 0);
  return losses;
}

TORCH_LIBRARY(trainyard, library) {
  library.def(
      "cross_entropy_(Tensor(a!) scores, Tensor targets, int columns, float factor, bool writes_gradients) -> Tensor");
}
TORCH_LIBRARY_IMPL(trainyard, CompositeExplicitAutograd, library) { library.impl("cross_entropy_", &CrossEntropy); }

}  // namespace

at::Tensor CrossEntropyOfRows(const at::Tensor& scores, const at::Tensor& targets, int64_t columns, double factor,
                              bool writes_gradients) {
  if (scores.scalar_type() == at::kDouble) return CrossEntropy(scores, targets, columns, factor, writes_gradients);
  using Function = at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, double, bool);
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("trainyard::cross_entropy_", "").typed<Function>();
  return operation.call(scores, targets, columns, factor, writes_gradients);
}

}  // namespace trainyard
