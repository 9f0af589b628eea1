#include "worker/model/ops/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/model/ops/rounding.h"
#include "worker/numerics/gemm.h"

namespace trainyard {
namespace {

constexpr int64_t kRows = 256;  // of 16-bit results at a time

bool IsOurs(const at::Tensor& x) { return x.is_cpu() && HasGemm(x.scalar_type()); }

template <typename T>
MatrixRef<T> Ref(const at::Tensor& matrix, bool transposed = false) {
  return {matrix.const_data_ptr<T>(), matrix.size(1), transposed};
}

// A 16-bit product, [rows, columns], with the terms to add to it.
struct RoundedProduct {
  using T = c10::BFloat16;
  MatrixRef<T> a, b;
  int64_t rows, depth, columns;
  const T* bias = nullptr;      // [columns]; null: none
  const T* residual = nullptr;  // [rows, columns]; null: none
  T* to = nullptr;              // [rows, columns]; may be the residual
};

void Multiply(const RoundedProduct& product) {
  const int64_t blocks = (product.rows + kRows - 1) / kRows;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    at::Tensor sums = at::empty({std::min(kRows, product.rows), product.columns}, at::kFloat);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRows, rows = std::min(kRows, product.rows - first);
      MatrixRef<RoundedProduct::T> a = product.a;
      a.data += a.transposed ? first : first * a.row;
      Gemm(rows, product.columns, product.depth, 1, a, product.b, 0, sums.mutable_data_ptr<float>(), product.columns);
      RoundRows({.sums = sums.const_data_ptr<float>(),
                 .bias = product.bias,
                 .residual = product.residual == nullptr ? nullptr : product.residual + first * product.columns,
                 .to = product.to + first * product.columns,
                 .rows = rows,
                 .columns = product.columns});
    }
  });
}

// x w + bias + residual, or x w^T + bias + residual. All arguments but the bias are matrices; bias and residual may be
// undefined.
at::Tensor Product(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias = {},
                   const at::Tensor& residual = {}) {
  if (!IsOurs(x)) {
    const at::Tensor factor = transposed ? w.t() : w;
    at::Tensor y = bias.defined() ? at::addmm(bias, x, factor) : at::mm(x, factor);
    return residual.defined() ? y.add_(residual) : y;
  }
  const int64_t out = w.size(transposed ? 0 : 1);
  at::Tensor y = at::empty({x.size(0), out}, x.options());
  if (x.scalar_type() == at::kBFloat16) {
    using T = RoundedProduct::T;
    Multiply({.a = Ref<T>(x),
              .b = Ref<T>(w, transposed),
              .rows = x.size(0),
              .depth = x.size(1),
              .columns = out,
              .bias = bias.defined() ? bias.const_data_ptr<T>() : nullptr,
              .residual = residual.defined() ? residual.const_data_ptr<T>() : nullptr,
              .to = y.mutable_data_ptr<T>()});
    return y;
  }
  if (residual.defined() && bias.defined()) {
    at::add_out(y, residual, bias);
  } else if (residual.defined() || bias.defined()) {
    y.copy_(residual.defined() ? residual : bias.expand_as(y));
  }
  const float beta = residual.defined() || bias.defined() ? 1 : 0;
  Gemm(x.size(0), out, x.size(1), 1, Ref<float>(x), Ref<float>(w, transposed), beta, y.mutable_data_ptr<float>(), out);
  return y;
}

// Writes x^T grad to `place`, or adds it if `overwrites` is false.
void WriteGradientOfWeight(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& place, bool overwrites) {
  if (!x.is_cpu() && place.scalar_type() == x.scalar_type()) {
    at::Tensor to = place;
    overwrites ? at::mm_out(to, x.t(), grad) : to.addmm_(x.t(), grad);
    return;
  }
  const int64_t in = x.size(1), out = grad.size(1);
  if (IsOurs(x) && IsSlowInLibTorch(x.scalar_type()) && place.scalar_type() == x.scalar_type()) {
    using T = RoundedProduct::T;
    T* to = place.mutable_data_ptr<T>();
    return Multiply({.a = Ref<T>(x, /*transposed=*/true),
                     .b = Ref<T>(grad),
                     .rows = in,
                     .depth = x.size(0),
                     .columns = out,
                     .residual = overwrites ? nullptr : to,
                     .to = to});
  }
  if (!IsOurs(x) || place.scalar_type() != at::kFloat) {
    at::Tensor gradient = at::mm(x.t(), grad);
    overwrites ? place.copy_(gradient) : place.add_(gradient);
    return;
  }
  float* to = place.mutable_data_ptr<float>();
  if (x.scalar_type() == at::kFloat) {
    Gemm(in, out, x.size(0), 1, Ref<float>(x, true), Ref<float>(grad), overwrites ? 0 : 1, to, out);
  } else {
    using T = c10::BFloat16;
    Gemm(in, out, x.size(0), 1, Ref<T>(x, true), Ref<T>(grad), overwrites ? 0 : 1, to, out);
  }
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  using Context = torch::autograd::AutogradContext;
  enum Input { kX, kWeight, kBias, kResidual };

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>& stored, bool transposed, int64_t sink,
                            int64_t weight_number, int64_t bias_number) {
    context->save_for_backward({x, weight});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["sink"] = sink;
    context->saved_data["weight"] = weight_number;
    context->saved_data["bias"] = bias_number;
    if (stored.has_value()) return stored->detach();
    return Product(x, weight, transposed, bias.value_or(at::Tensor()), residual.value_or(at::Tensor()));
  }

  static torch::autograd::tensor_list backward(Context* context, torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor grad = gradients[0].contiguous();
    auto* sink = reinterpret_cast<GradientSink*>(context->saved_data["sink"].toInt());
    const bool transposed = context->saved_data["transposed"].toBool();
    torch::autograd::tensor_list result(9);
    // The gradient of a transposed weight is grad^T x.
    const at::Tensor &left = transposed ? grad : x, &right = transposed ? x : grad;
    // The gradients of the parameters come first, so that their communication starts earlier.
    if (context->needs_input_grad(kWeight)) {
      const int number = static_cast<int>(context->saved_data["weight"].toInt());
      GradientSink::Place place = sink == nullptr ? GradientSink::Place() : sink->Claim(number);
      if (place.tensor.defined()) {
        WriteGradientOfWeight(left, right, place.tensor, place.overwrites);
        sink->Done(number);
      } else {
        result[kWeight] = at::empty(weight.sizes(), weight.options());
        WriteGradientOfWeight(left, right, result[kWeight], /*overwrites=*/true);
      }
    }
    // Autograd expects one gradient per tensor argument that was passed.
    const bool has_bias = context->saved_data["has_bias"].toBool(),
               has_residual = context->saved_data["has_residual"].toBool();
    if (has_bias && context->needs_input_grad(2)) {
      result[kBias] = SumRowsIntoSink(grad, sink, static_cast<int>(context->saved_data["bias"].toInt()));
    }
    if (context->needs_input_grad(kX)) result[kX] = Product(grad, weight, !transposed);
    if (has_residual && context->needs_input_grad(has_bias ? 3 : 2)) result[kResidual] = grad;
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
      WriteGradientOfWeight(grad, x, result[1], /*overwrites=*/true);
    }
    return result;
  }
};

}  // namespace

at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight) {
  if (!IsOurs(x) || !IsSlowInLibTorch(x.scalar_type())) return at::matmul(x, weight.t());
  return TransposedFunction::apply(x.contiguous(), weight);
}

at::Tensor SumRowsIntoSink(const at::Tensor& rows, GradientSink* sink, int number) {
  const at::Tensor matrix = rows.view({-1, rows.size(-1)});
  GradientSink::Place place = sink == nullptr ? GradientSink::Place() : sink->Claim(number);
  if (!place.tensor.defined()) return matrix.sum(0);
  if (place.overwrites) {
    at::sum_out(place.tensor, matrix, {0}, /*keepdim=*/false, place.tensor.scalar_type());
  } else {
    place.tensor.add_(matrix.sum(0, /*keepdim=*/false, place.tensor.scalar_type()));
  }
  sink->Done(number);
  return {};
}

at::Tensor Linear(const at::Tensor& x, const LinearArgs& args) {
  const at::Tensor& weight = args.weight.tensor;
  auto matrix = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  auto if_defined = [](const at::Tensor& t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
  const bool replays = args.tape != nullptr && args.tape->replays();
  const at::Tensor stored = replays ? args.tape->Next() : at::Tensor();
  const at::Tensor residual = args.residual.defined() ? matrix(args.residual).contiguous() : at::Tensor();
  at::Tensor y = LinearFunction::apply(
      matrix(x).contiguous(), weight, if_defined(args.bias.tensor), if_defined(residual), if_defined(stored),
      args.transposed, reinterpret_cast<int64_t>(args.sink), int64_t{args.weight.number}, int64_t{args.bias.number});
  if (args.tape != nullptr && !replays) args.tape->Keep(y);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(args.transposed ? 0 : 1);
  return y.view(shape);
}

}  // namespace trainyard
