#include "worker/parallel/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

// What the second run needs besides the input. `tape` null: nothing is kept.
struct FirstRun final : torch::CustomClassHolder {
  UnitBody body;
  std::unique_ptr<ProductTape> tape;
};

struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<FirstRun>& run) {
    context->save_for_backward({x});
    context->saved_data["run"] = c10::IValue::make_capsule(run);
    return run->body(x, run->tape.get());
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto run = c10::static_intrusive_pointer_cast<FirstRun>(context->saved_data["run"].toCapsule());
    const std::unique_ptr<ProductTape> tape = std::move(run->tape);
    if (tape != nullptr) tape->Rewind();
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    at::Tensor y;
    {
      at::AutoGradMode with_grad(true);
      y = run->body(x, tape.get());
    }
    y.backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

absl::StatusOr<RecomputeMode> RecomputeModeOf(absl::string_view word) {
  if (word == "none") return RecomputeMode::kNone;
  if (word == "blocks") return RecomputeMode::kBlocks;
  if (word == "selective") return RecomputeMode::kSelective;
  return absl::InvalidArgumentError(
      absl::StrCat("'", word, "' is no way to recompute; known: none, blocks, selective"));
}

at::Tensor RunBody(const Recompute& recompute, int unit, const at::Tensor& x, const UnitBody& body) {
  const bool again = recompute.mode != RecomputeMode::kNone && unit > 0 && unit % recompute.every == 0;
  if (!again || !at::GradMode::is_enabled()) return body(x, nullptr);
  auto run = c10::make_intrusive<FirstRun>();
  run->body = body;
  if (recompute.mode == RecomputeMode::kSelective) run->tape = std::make_unique<ProductTape>();
  // Something must lead autograd here, even if all below is frozen.
  return Again::apply(x.requires_grad() ? x : x.detach().requires_grad_(true), run);
}

}  // namespace trainyard
