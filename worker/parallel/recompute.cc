#include "worker/parallel/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

// What backward needs, in addition to the input, to run the unit a second time. `tape` is null if no outputs of the
// first run are stored.
struct FirstRun final : torch::CustomClassHolder {
  UnitBody body;
  std::unique_ptr<ProductTape> tape;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
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

class RecomputingRunner final : public UnitRunner {
 public:
  RecomputingRunner(const Recompute& recompute, int first_backward)
      : recompute_(recompute), first_backward_(first_backward) {}

  at::Tensor Run(int unit, const at::Tensor& x, const UnitBody& body) override {
    if (!Recomputes(unit) || !at::GradMode::is_enabled()) return body(x, nullptr);
    auto run = c10::make_intrusive<FirstRun>();
    run->body = body;
    if (recompute_.mode == RecomputeMode::kSelective) run->tape = std::make_unique<ProductTape>();
    // Autograd must reach this unit even if everything below it is frozen.
    return RecomputeFunction::apply(x.requires_grad() ? x : x.detach().requires_grad_(true), run);
  }

 private:
  bool Recomputes(int unit) const {
    return recompute_.mode != RecomputeMode::kNone && unit > 0 && unit >= first_backward_ &&
           unit % recompute_.every == 0;
  }

  const Recompute recompute_;
  const int first_backward_;
};

}  // namespace

absl::StatusOr<RecomputeMode> RecomputeModeOf(absl::string_view name) {
  if (name == "none") return RecomputeMode::kNone;
  if (name == "blocks") return RecomputeMode::kBlocks;
  if (name == "selective") return RecomputeMode::kSelective;
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a recompute mode; known: none, blocks, selective"));
}

std::unique_ptr<UnitRunner> ApplyRecompute(const Recompute& recompute, int first_backward) {
  return std::make_unique<RecomputingRunner>(recompute, first_backward);
}

}  // namespace trainyard
