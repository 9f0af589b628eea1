
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include "models/model_description.h"
#include "tests/unit/model/gradients.h"
#include "worker/model/model_factory.h"

namespace trainyard {
namespace {

// 7 features, two hidden layers of width 5, 3 classes.
const ModelSizes kSizes = {
    .family = ModelFamily::kMlp, .layers = 2, .heads = 1, .width = 5, .context = 7, .vocabulary = 3};

struct Rows {
  at::Tensor features = at::randn({4, 7}, at::kDouble);
  at::Tensor classes = at::randint(3, {4}, at::kLong);

  at::Tensor Inputs() const { return features.view(at::kLong); }
  at::Tensor Targets() const {
    at::Tensor targets = at::full({4, 7}, -1, at::kLong);
    targets.select(1, 0).copy_(classes);
    return targets;
  }
};

TEST(Mlp, HasTheLossAndTheGradientsOfTheSameLayersInLibTorch) {
  at::manual_seed(3);
  const Rows rows;
  auto model = *NewModel(kSizes, /*seed=*/1, at::kDouble, /*backed=*/true);
  NoUnitHooks hooks;

  at::Tensor loss = model->LossSum(rows.Inputs(), rows.Targets(), hooks, std::nullopt);
  loss.backward();

  std::vector<at::Tensor> leaves;
  for (const NamedTensor& parameter : model->parameters()) leaves.push_back(Leaf(parameter.tensor));
  at::Tensor x = at::relu(at::linear(rows.features, leaves[2], leaves[3]));
  x = at::relu(at::linear(x, leaves[4], leaves[5]));
  const at::Tensor scores = at::linear(x, leaves[0], leaves[1]);
  at::Tensor expected = at::cross_entropy_loss(scores, rows.classes, {}, at::Reduction::Sum);
  expected.backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_LT(RelativeDifference(model->parameters()[i].tensor.grad(), leaves[i].grad()), 1e-12)
        << model->parameters()[i].name;
  }
  EXPECT_LT(RelativeDifference(model->Logits(rows.Inputs(), hooks).squeeze(1), scores), 1e-12);
}

TEST(Mlp, HasAsManyParametersAsItsDescriptionCounts) {
  auto model = *NewModel(kSizes, /*seed=*/1, at::kFloat, /*backed=*/true);

  EXPECT_EQ(model->num_elements(), 7 * 5 + 5 + 5 * 5 + 5 + 5 * 3 + 3);
  EXPECT_EQ(CountParameters(kSizes), static_cast<uint64_t>(model->num_elements()));
  EXPECT_EQ(model->parameters()[0].name, "head.weight");
  EXPECT_EQ(model->parameters()[2].name, "layers.0.weight");
}

}  // namespace
}  // namespace trainyard
