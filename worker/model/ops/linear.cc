#include "worker/model/ops/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "worker/model/ops/few_rows.h"
#include "worker/model/ops/products.h"
#include "worker/model/ops/sum_rows.h"
#include "worker/model/ops/tensor_linear.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

// What a row product needs in addition to tensors; without a group, the product is computed by this rank alone.
struct RowPass final : torch::CustomClassHolder {
  TensorGroup* group = nullptr;
  std::optional<SequencePart> part;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kBias, kResidual };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>& stored, bool transposed, int64_t sink,
                            int64_t weight_number, int64_t bias_number, const c10::intrusive_ptr<RowPass>& pass) {
    context->save_for_backward({x, weight});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
    context->saved_data["bias"] = bias_number;
    if (pass->part.has_value()) context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    if (stored.has_value()) return stored->detach();
    const at::Tensor to_rows = bias.value_or(at::Tensor()), to_all = residual.value_or(at::Tensor());
    if (pass->group == nullptr) return Product(x, weight, transposed, to_rows, to_all);
    if (pass->part.has_value()) return ScatteredProduct(x, weight, transposed, to_rows, to_all, *pass->part);
    return SummedProduct(x, weight, transposed, to_rows, to_all, *pass->group);
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor own_grad = gradients[0].contiguous();
    at::Tensor grad = own_grad;  // the gradient of all rows
    if (const auto pass = context->saved_data.find("pass"); pass != context->saved_data.end()) {
      grad = GatherRows(*c10::static_intrusive_pointer_cast<RowPass>(pass->second.toCapsule())->part, own_grad);
    }
    auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
    const bool transposed = context->saved_data["transposed"].toBool();
    torch::autograd::tensor_list result(10);
    // The gradients of the parameters come first, so that their communication starts earlier.
    if (context->needs_input_grad(kWeight)) {
      result[kWeight] = WeightGradientIntoSink(x, grad, weight, transposed, sink,
                                               static_cast<int>(context->saved_data["weight"].toInt()));
    }
    // needs_input_grad counts only the tensors that were passed to forward; `result` has an entry for every argument.
    const bool has_bias = context->saved_data["has_bias"].toBool(),
               has_residual = context->saved_data["has_residual"].toBool();
    if (has_bias && context->needs_input_grad(2)) {
      result[kBias] = SumRowsIntoSink(own_grad, sink, static_cast<int>(context->saved_data["bias"].toInt()));
    }
    if (context->needs_input_grad(kX)) result[kX] = Product(grad, weight, !transposed);
    if (has_residual && context->needs_input_grad(has_bias ? 3 : 2)) result[kResidual] = own_grad;
    return result;
  }
};

// x w^T for a type in which LibTorch is slow. Gradients go through autograd.
struct TransposedFunction : torch::autograd::Function<TransposedFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return Product(x, weight, /*transposed=*/true);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor grad = gradients[0].contiguous();
    torch::autograd::tensor_list result(2);
    if (context->needs_input_grad(0)) result[0] = Product(grad, weight, /*transposed=*/false);
    if (context->needs_input_grad(1)) {
      result[1] = at::empty(weight.sizes(), weight.options());
      WriteTransposedProduct(grad, x, result[1], /*overwrites=*/true);
    }
    return result;
  }
};

}  // namespace

at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight, bool few_rows) {
  if (few_rows && CanMultiplyFewRows(x)) {
    return MultiplyFewRows(x.contiguous(), weight, /*transposed=*/true, /*bias=*/{}, /*residual=*/{});
  }
  if (!x.is_cpu() || !HasGemm(x.scalar_type()) || !IsSlowInLibTorch(x.scalar_type())) return at::matmul(x, weight.t());
  return TransposedFunction::apply(x.contiguous(), weight);
}

at::Tensor SumRowsIntoSink(const at::Tensor& rows, GradientSink* sink, int number) {
  at::Tensor matrix = WithFewerRows(rows.view({-1, rows.size(-1)}));
  GradientSink::Place place = sink == nullptr ? GradientSink::Place() : sink->Claim(number);
  const at::ScalarType type = place.tensor.defined() ? place.tensor.scalar_type() : rows.scalar_type();
  // If WithFewerRows has returned partial sums in fp32, they are added up in fp32 here, because LibTorch would round
  // each of their rows to `type` before adding them.
  if (matrix.scalar_type() != rows.scalar_type() && type != at::kFloat) matrix = matrix.sum(0, /*keepdim=*/true);
  if (!place.tensor.defined()) return matrix.sum(0, /*keepdim=*/false, type);
  if (place.overwrites) {
    at::sum_out(place.tensor, matrix, {0}, /*keepdim=*/false, type);
  } else {
    place.tensor.add_(matrix.sum(0, /*keepdim=*/false, type));
  }
  sink->Done(number);
  return {};
}

at::Tensor WeightGradientIntoSink(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight,
                                  bool transposed, GradientSink* sink, int number) {
  const at::Tensor &left = transposed ? grad : x, &right = transposed ? x : grad;
  if (sink != nullptr && sink->defers()) {
    sink->Defer([left = left, right = right, sink, number] {
      const GradientSink::Place place = sink->Claim(number);
      TORCH_CHECK(place.tensor.defined(), "the sink has no place for a gradient that it deferred");
      WriteTransposedProduct(left, right, place.tensor, place.overwrites);
      sink->Done(number);
    });
    return {};
  }
  GradientSink::Place place = sink == nullptr ? GradientSink::Place() : sink->Claim(number);
  if (place.tensor.defined()) {
    WriteTransposedProduct(left, right, place.tensor, place.overwrites);
    sink->Done(number);
    return {};
  }
  at::Tensor gradient = at::empty(weight.sizes(), weight.options());
  WriteTransposedProduct(left, right, gradient, /*overwrites=*/true);
  return gradient;
}

at::Tensor Linear(const at::Tensor& x, const LinearArgs& args) {
  const at::Tensor& weight = args.weight.tensor;
  const auto matrix = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(args.transposed ? 0 : 1);
  if (args.part.has_value()) shape = {args.part->share(), shape.back()};
  if (args.few_rows && CanMultiplyFewRows(x)) {
    const at::Tensor residual = args.residual.defined() ? matrix(args.residual).contiguous() : at::Tensor();
    return MultiplyFewRows(matrix(x).contiguous(), weight, args.transposed, args.bias.tensor, residual).view(shape);
  }
  auto if_defined = [](const at::Tensor& t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
  const bool replays = args.tape != nullptr && args.tape->replays();
  const at::Tensor stored = replays ? args.tape->Next() : at::Tensor();
  const at::Tensor residual = args.residual.defined() ? matrix(args.residual).contiguous() : at::Tensor();
  const auto pass = c10::make_intrusive<RowPass>();
  pass->group = args.group;
  pass->part = args.part;
  at::Tensor y =
      LinearFunction::apply(matrix(x).contiguous(), weight, if_defined(args.bias.tensor), if_defined(residual),
                            if_defined(stored), args.transposed, reinterpret_cast<int64_t>(args.sink),
                            int64_t{args.weight.number}, int64_t{args.bias.number}, pass);
  if (args.tape != nullptr && !replays) args.tape->Keep(y);
  return y.view(shape);
}

}  // namespace trainyard
