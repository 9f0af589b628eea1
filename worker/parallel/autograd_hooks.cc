#include "worker/parallel/autograd_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace trainyard {
namespace {

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw UnitError(status);
}

class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(BackwardEvents& events, int parameter) : events_(events), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable&) override {
    c10::NoGradGuard no_grad;
    ThrowUnlessOk(events_.OnGradient(parameter_));
  }

 private:
  BackwardEvents& events_;
  int parameter_;
};

// The identity; its backward reports the end of a unit's backward. Its output is a view: if a function returns its
// input itself, autograd regards it as modified in place.
struct GateFunction : torch::autograd::Function<GateFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t events,
                            int64_t unit) {
    context->saved_data["events"] = events;
    context->saved_data["unit"] = unit;
    return x.view_as(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    auto* events = reinterpret_cast<BackwardEvents*>(context->saved_data["events"].toInt());
    c10::NoGradGuard no_grad;
    ThrowUnlessOk(events->AfterBackward(static_cast<int>(context->saved_data["unit"].toInt())));
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void WatchGradient(const at::Tensor& parameter, BackwardEvents* events, int number) {
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter, events == nullptr ? nullptr : std::make_unique<GradientHook>(*events, number));
}

at::Tensor Gate(const at::Tensor& x, BackwardEvents& events, int unit) {
  return GateFunction::apply(x, reinterpret_cast<int64_t>(&events), int64_t{unit});
}

void WatchOutput(const at::Tensor& y, BackwardEvents& events, int unit) {
  y.register_hook([&events, unit](const at::Tensor&) {
    c10::NoGradGuard no_grad;
    ThrowUnlessOk(events.BeforeBackward(unit));
  });
}

}  // namespace trainyard
