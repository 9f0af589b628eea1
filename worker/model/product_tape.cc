#include "worker/model/product_tape.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace trainyard {
namespace {

// The gradients are those of at::addmm, made by the same calls. That of the bias is added up over the rows by autograd.
struct ReplayedAddmm : torch::autograd::Function<ReplayedAddmm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*bias*/, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& product) {
    context->save_for_backward({x, weight});
    return product.detach();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &gradient = gradients[0];
    at::Tensor of_x, of_weight;
    if (context->needs_input_grad(1)) of_x = gradient.mm(weight.t());
    if (context->needs_input_grad(2)) of_weight = x.t().mm(gradient);
    return {context->needs_input_grad(0) ? gradient : at::Tensor(), of_x, of_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor ProductTape::Addmm(const at::Tensor& bias, const at::Tensor& x, const at::Tensor& weight) {
  if (!replays_) {
    products_.push_back(at::addmm(bias, x, weight));
    return products_.back();
  }
  const at::Tensor product = std::exchange(products_.at(next_++), at::Tensor());
  return ReplayedAddmm::apply(bias, x, weight, product);
}

at::Tensor Addmm(const at::Tensor& bias, const at::Tensor& x, const at::Tensor& weight, ProductTape* tape) {
  return tape == nullptr ? at::addmm(bias, x, weight) : tape->Addmm(bias, x, weight);
}

}  // namespace trainyard
