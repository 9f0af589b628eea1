#include "worker/model/mlp.h"

#include <ATen/ops/relu.h>

#include "common/status_macros.h"
#include "models/mlp_description.h"
#include "worker/model/initial_values.h"
#include "worker/model/ops/head_loss.h"
#include "worker/model/ops/linear.h"
#include "worker/model/product_tape.h"

namespace trainyard {
namespace {

struct Layer {
  NumberedTensor weight, bias;
};

class Mlp final : public Model {
 public:
  Mlp(const ModelDescription& description, uint64_t seed, at::ScalarType type) : sizes_(description.sizes) {
    AddParameters(description, type);
    head_ = LayerAt(0);
    for (int layer = 0; layer < sizes_.layers; ++layer) layers_.push_back(LayerAt(2 * (layer + 1)));
    set_initial_values(DrawInitialValues(description, seed));
  }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                     std::optional<DropoutKey> /*dropout*/, const at::Tensor& /*starts*/ = {}) override {
    const at::Tensor classes = targets.select(/*dim=*/1, 0).contiguous();
    return hooks.AfterRoot(LossOfScores(Scores(inputs, hooks), classes));
  }

  at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) override {
    return hooks.AfterRoot(Scores(inputs, hooks).unsqueeze(1));
  }

  bool FeedsUnits(int /*number*/) const override { return false; }

  // The head, then the layers from last to first, each with its weight before its bias.
  std::vector<int> ReadyOrder() const override {
    std::vector<int> order = {head_.weight.number, head_.bias.number};
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      order.push_back(layer->weight.number);
      order.push_back(layer->bias.number);
    }
    return order;
  }

  int64_t context() const override { return sizes_.context; }
  int64_t vocabulary() const override { return sizes_.vocabulary; }

 private:
  // [samples, classes].
  at::Tensor Scores(const at::Tensor& inputs, UnitHooks& hooks) {
    hooks.BeforeRoot();
    GradientSink* sink = hooks.sink();
    // Batches hold only integers, so `inputs` holds the bits of doubles.
    at::Tensor x = inputs.contiguous().view(at::kDouble).to(parameters_[0].tensor.scalar_type());
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = hooks.RunUnit(static_cast<int>(i) + 1, x, [this, i, sink](const at::Tensor& in, ProductTape* tape) {
        return at::relu(Apply(layers_[i], in, sink, tape));
      });
    }
    const at::Tensor scores = Apply(head_, x, sink, /*tape=*/nullptr);
    return output_type_.has_value() ? scores.to(*output_type_) : scores;
  }

  static at::Tensor Apply(const Layer& layer, const at::Tensor& x, GradientSink* sink, ProductTape* tape) {
    return Linear(x, {.weight = layer.weight, .transposed = true, .bias = layer.bias, .sink = sink, .tape = tape});
  }

  Layer LayerAt(int first) const {
    const auto at = [this](int number) {
      return NumberedTensor{parameters_[static_cast<size_t>(number)].tensor, number};
    };
    return {.weight = at(first), .bias = at(first + 1)};
  }

  const ModelSizes sizes_;
  Layer head_;
  std::vector<Layer> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewMlp(const ModelSizes& sizes, uint64_t seed, at::ScalarType type) {
  RETURN_IF_ERROR(CheckSizes(sizes));
  return std::make_unique<Mlp>(DescribeMlp(sizes), seed, type);
}

}  // namespace trainyard
