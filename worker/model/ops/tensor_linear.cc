#include "worker/model/ops/tensor_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "models/model_part.h"
#include "worker/model/ops/products.h"

namespace trainyard {
namespace {

// What a pass needs in addition to tensors.
struct ColumnPass final : torch::CustomClassHolder {
  std::vector<LinearArgs> projections;  // without tensors
  std::vector<bool> has_bias;
  std::vector<at::Tensor> stored;  // when a recomputation replays a tape: the results; else empty
  TensorGroup* group = nullptr;

  const std::optional<SequencePart>& part() const { return projections.front().part; }
};

struct ColumnFunction : torch::autograd::Function<ColumnFunction> {
  using Context = torch::autograd::AutogradContext;

  // `parameters`: each weight, followed by its bias if there is one.
  static torch::autograd::tensor_list forward(Context* context, const at::Tensor& x, at::TensorList parameters,
                                              const c10::intrusive_ptr<ColumnPass>& pass) {
    torch::autograd::tensor_list saved = {x}, results;
    at::Tensor rows = x;
    if (pass->part().has_value() && pass->stored.empty()) rows = GatherRows(*pass->part(), x);
    size_t next = 0;
    for (size_t i = 0; i < pass->projections.size(); ++i) {
      const at::Tensor& weight = parameters[next++];
      const at::Tensor bias = pass->has_bias[i] ? parameters[next++] : at::Tensor();
      saved.push_back(weight);
      results.push_back(pass->stored.empty() ? Product(rows, weight, pass->projections[i].transposed, bias)
                                             : pass->stored[i].detach());
    }
    pass->stored.clear();
    context->save_for_backward(std::move(saved));
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return results;
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto pass = c10::static_intrusive_pointer_cast<ColumnPass>(context->saved_data["pass"].toCapsule());
    const auto saved = context->get_saved_variables();
    const std::optional<SequencePart>& part = pass->part();
    const bool gathers = part.has_value() && NeedsGradientsOfParameters(*context, *pass);
    at::Tensor x = gathers ? StartGatherRows(*part, saved[0]) : saved[0];
    for (at::Tensor& gradient : gradients) gradient = gradient.contiguous();
    at::Tensor grad_x;
    if (context->needs_input_grad(0)) {
      grad_x = part.has_value() ? NewRows(*part, x.size(1), x.options()) : at::empty_like(x);
      const at::Tensor of_rows = grad_x.narrow(0, 0, gradients[0].size(0));
      for (size_t i = 0; i < gradients.size(); ++i) {
        WriteProduct(gradients[i], saved[i + 1], !pass->projections[i].transposed, /*bias=*/{},
                     i == 0 ? at::Tensor() : of_rows, of_rows);
      }
    }
    if (gathers) {
      pass->group->Wait();
      x = x.narrow(0, 0, part->rows());
    }
    torch::autograd::tensor_list result(1);
    if (grad_x.defined() && part.has_value()) {
      result[0] = StartScatterRows(*part, grad_x);
    } else if (grad_x.defined()) {
      pass->group->StartSum(grad_x);
      result[0] = grad_x;
    }
    StoreGradients(*context, *pass, x, saved, gradients, result);
    if (result[0].defined()) pass->group->Wait();
    result.emplace_back();  // the pass has no gradient
    return result;
  }

  static bool NeedsGradientsOfParameters(Context& context, const ColumnPass& pass) {
    size_t parameters = 0;
    for (const bool has_bias : pass.has_bias) parameters += has_bias ? 2 : 1;
    for (size_t i = 1; i <= parameters; ++i) {
      if (context.needs_input_grad(i)) return true;
    }
    return false;
  }

  // Appends the gradients of the parameters. `x`: all rows.
  static void StoreGradients(Context& context, const ColumnPass& pass, const at::Tensor& x,
                             const torch::autograd::tensor_list& saved, const torch::autograd::tensor_list& gradients,
                             torch::autograd::tensor_list& result) {
    size_t next = 1;
    for (const bool has_bias : pass.has_bias) next += has_bias ? 2 : 1;
    result.resize(next);
    for (size_t i = gradients.size(); i-- > 0;) {
      const LinearArgs& args = pass.projections[i];
      const size_t bias = --next, weight = pass.has_bias[i] ? --next : bias;
      if (context.needs_input_grad(weight)) {
        result[weight] =
            WeightGradientIntoSink(x, gradients[i], saved[i + 1], args.transposed, args.sink, args.weight.number);
      }
      if (pass.has_bias[i] && context.needs_input_grad(bias)) {
        result[bias] = SumRowsIntoSink(gradients[i], args.sink, args.bias.number);
      }
    }
  }
};

// Writes x w to `y`, in which the rows `own` also get bias and residual. `residual` has only these rows.
void WriteProductOfRank(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                        const at::Tensor& residual, const SplitRange& own, const at::Tensor& y) {
  const auto multiply = [&](int64_t first, int64_t count, bool adds) {
    if (count == 0) return;
    WriteProduct(x.narrow(0, first, count), w, transposed, adds ? bias : at::Tensor(), adds ? residual : at::Tensor(),
                 y.narrow(0, first, count));
  };
  if (!bias.defined() && !residual.defined()) return multiply(0, x.size(0), /*adds=*/false);
  const int64_t end = own.first + own.count;
  multiply(0, own.first, /*adds=*/false);
  multiply(own.first, own.count, /*adds=*/true);
  multiply(end, x.size(0) - end, /*adds=*/false);
}

}  // namespace

std::vector<at::Tensor> ColumnLinear(const at::Tensor& x, const std::vector<LinearArgs>& projections,
                                     TensorGroup& group) {
  ProductTape* const tape = projections.front().tape;
  const bool replays = tape != nullptr && tape->replays();
  auto pass = c10::make_intrusive<ColumnPass>();
  pass->group = &group;
  std::vector<at::Tensor> parameters;
  for (const LinearArgs& args : projections) {
    parameters.push_back(args.weight.tensor);
    if (args.bias.tensor.defined()) parameters.push_back(args.bias.tensor);
    pass->has_bias.push_back(args.bias.tensor.defined());
    if (replays) pass->stored.push_back(tape->Next());
    LinearArgs& kept = pass->projections.emplace_back(args);
    kept.weight.tensor = kept.bias.tensor = at::Tensor();
  }
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
  std::vector<at::Tensor> results = ColumnFunction::apply(rows, at::TensorList(parameters), pass);
  for (at::Tensor& result : results) {
    if (tape != nullptr && !replays) tape->Keep(result);
    std::vector<int64_t> shape = x.sizes().vec();
    if (pass->part().has_value()) shape = {pass->part()->sequences, pass->part()->tokens, 0};
    shape.back() = result.size(1);
    result = result.view(shape);
  }
  return results;
}

at::Tensor SummedProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                         const at::Tensor& residual, TensorGroup& group) {
  const int64_t rows = x.size(0);
  // Each rank adds bias and residual to its share of the rows, so that the sum has them once and no rank works more.
  // On devices other than CPUs, separate products for these rows and the others cost more than they save, so there rank
  // 0 adds bias and residual to all rows.
  SplitRange own = RangeOfTensorRank(rows, /*granule=*/1, group.rank(), group.size());
  if (!x.is_cpu()) own = {.first = 0, .count = group.rank() == 0 ? rows : 0};
  at::Tensor y = at::empty({rows, w.size(transposed ? 0 : 1)}, x.options());
  const at::Tensor of_own = residual.defined() ? residual.narrow(0, own.first, own.count) : at::Tensor();
  WriteProductOfRank(x, w, transposed, bias, of_own, own, y);
  group.Sum(y);
  return y;
}

at::Tensor ScatteredProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                            const at::Tensor& residual, const SequencePart& part) {
  const at::Tensor y = NewRows(part, w.size(transposed ? 0 : 1), x.options()), of_rows = y.narrow(0, 0, part.rows());
  if (x.is_cpu()) {
    const SplitRange own = {.first = std::min(part.first(), part.rows()), .count = part.held()};
    const at::Tensor of_own = residual.defined() ? residual.narrow(0, 0, own.count) : at::Tensor();
    WriteProductOfRank(x, w, transposed, bias, of_own, own, of_rows);
  } else {
    WriteProduct(x, w, transposed, /*bias=*/{}, /*residual=*/{}, of_rows);
  }
  at::Tensor sum = StartScatterRows(part, y);
  part.group->Wait();
  if (!x.is_cpu() && bias.defined()) sum.add_(bias);
  if (!x.is_cpu() && residual.defined()) sum.add_(residual);
  return sum;
}

}  // namespace trainyard
