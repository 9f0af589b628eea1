// Documents packed into one sequence: each is computed as if it were alone in the sequence.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/unit/model/gradients.h"
#include "worker/model/model_factory.h"
#include "worker/model/ops/attention.h"

namespace trainyard {
namespace {

// Lengths of the documents of each sequence, around the 64 rows that the attention kernel computes at a time. All
// sequences have the same length.
const std::vector<std::vector<int64_t>> kPackings = {{1, 63, 64, 3, 65, 4}, {200}, {130, 1, 1, 68}, {64, 64, 64, 8}};
constexpr int64_t kPackedTokens = 200;

at::Tensor StartsOf(const std::vector<std::vector<int64_t>>& packings) {
  std::vector<at::Tensor> rows;
  for (const std::vector<int64_t>& lengths : packings) {
    at::Tensor row = at::full({kPackedTokens}, 0, at::kLong);
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      row.narrow(0, begin, length).fill_(begin);
      begin += length;
    }
    EXPECT_EQ(begin, kPackedTokens);
    rows.push_back(row);
  }
  return at::stack(rows);
}

struct ModelCase {
  const char* name;
  ModelSizes sizes;
  at::ScalarType type;
  double tolerance;
};

class DocumentsTest : public testing::TestWithParam<ModelCase> {};

// A loss, and the gradients of the model's parameters.
struct Computed {
  double loss = 0;
  std::vector<at::Tensor> gradients = {};
};

Computed Compute(Model& model, const std::function<at::Tensor(UnitHooks&)>& loss) {
  for (const NamedTensor& parameter : model.parameters()) parameter.tensor.mutable_grad() = at::Tensor();
  NoUnitHooks hooks;
  at::Tensor sum = loss(hooks);
  sum.backward();
  Computed result{.loss = sum.item<double>()};
  for (const NamedTensor& parameter : model.parameters()) result.gradients.push_back(parameter.tensor.grad().clone());
  return result;
}

TEST_P(DocumentsTest, PackedDocuments_HaveTheLossAndTheGradientsOfEachAlone) {
  at::manual_seed(3);
  const ModelCase& test = GetParam();
  std::unique_ptr<Model> model = *NewModel(test.sizes, 1, test.type);
  const int64_t rows = static_cast<int64_t>(kPackings.size());
  const at::Tensor tokens = at::randint(test.sizes.vocabulary, {rows, kPackedTokens}, at::kLong);
  at::Tensor targets = at::randint(test.sizes.vocabulary, {rows, kPackedTokens}, at::kLong);
  const at::Tensor starts = StartsOf(kPackings);

  const Computed packed =
      Compute(*model, [&](UnitHooks& hooks) { return model->LossSum(tokens, targets, hooks, std::nullopt, starts); });
  const Computed alone = Compute(*model, [&](UnitHooks& hooks) {
    at::Tensor sum;
    for (size_t row = 0; row < kPackings.size(); ++row) {
      int64_t begin = 0;
      for (const int64_t length : kPackings[row]) {
        const auto of = [&](const at::Tensor& all) {
          return all.narrow(0, static_cast<int64_t>(row), 1).narrow(1, begin, length).contiguous();
        };
        const at::Tensor loss = model->LossSum(of(tokens), of(targets), hooks, std::nullopt);
        sum = sum.defined() ? sum + loss : loss;
        begin += length;
      }
    }
    return sum;
  });

  EXPECT_NEAR(packed.loss, alone.loss, test.tolerance * alone.loss);
  for (size_t i = 0; i < packed.gradients.size(); ++i) {
    EXPECT_LT(RelativeDifference(packed.gradients[i], alone.gradients[i]), test.tolerance)
        << model->parameters()[i].name;
  }
  const Computed joined =
      Compute(*model, [&](UnitHooks& hooks) { return model->LossSum(tokens, targets, hooks, std::nullopt); });
  EXPECT_GT(std::abs(joined.loss - alone.loss), test.tolerance * alone.loss)
      << "the loss is the same without `starts`, so the comparison proves nothing";
}

constexpr ModelSizes kGpt2Sizes{.layers = 2, .heads = 2, .width = 24, .context = kPackedTokens, .vocabulary = 32};

ModelSizes GroupedSizes() {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = 2,
                             .heads = 4,
                             .width = 20,
                             .context = kPackedTokens,
                             .vocabulary = 32,
                             .kv_heads = 2,
                             .head_width = 6,
                             .inner = 28});
}

INSTANTIATE_TEST_SUITE_P(Families, DocumentsTest,
                         testing::Values(ModelCase{"gpt2_fp64", kGpt2Sizes, at::kDouble, 1e-10},
                                         ModelCase{"gpt2_fp32", kGpt2Sizes, at::kFloat, 1e-5},
                                         ModelCase{"llama_fp64", GroupedSizes(), at::kDouble, 1e-10},
                                         ModelCase{"llama_fp32", GroupedSizes(), at::kFloat, 1e-5}),
                         [](const auto& info) { return info.param.name; });

TEST(DocumentAttention, OurKernelsMatchLibTorch) {
  at::manual_seed(5);
  const int64_t rows = static_cast<int64_t>(kPackings.size());
  const at::Tensor starts = StartsOf(kPackings), weights = at::randn({rows, kPackedTokens, 4 * 10});
  const at::Tensor qkv = at::randn({rows, kPackedTokens, 3 * 4 * 10});
  const at::Tensor q = at::randn({rows, kPackedTokens, 4 * 10}), k = at::randn({rows, kPackedTokens, 2 * 10});
  const at::Tensor v = at::randn({rows, kPackedTokens, 2 * 10});
  const auto fused = [&](AttentionKernel kernel, at::ScalarType type) {
    at::Tensor leaf = Leaf(qkv.to(type));
    return WithGradients(CausalAttentionBy(kernel, leaf, 4, {}, starts), weights, {leaf});
  };
  const auto grouped = [&](AttentionKernel kernel, at::ScalarType type) {
    at::Tensor lq = Leaf(q.to(type)), lk = Leaf(k.to(type)), lv = Leaf(v.to(type));
    return WithGradients(GroupedAttentionBy(kernel, lq, lk, lv, 4, 2, starts), weights, {lq, lk, lv});
  };
  const auto exact = fused(AttentionKernel::kLibTorch, at::kDouble);
  const auto exact_grouped = grouped(AttentionKernel::kLibTorch, at::kDouble);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double tolerance = type == at::kFloat ? 1e-5 : 5e-2;
    const auto own = fused(AttentionKernel::kOwn, type);
    const auto own_grouped = grouped(AttentionKernel::kOwn, type);
    for (size_t i = 0; i < own.size(); ++i) EXPECT_LT(RelativeDifference(own[i], exact[i]), tolerance) << i;
    for (size_t i = 0; i < own_grouped.size(); ++i) {
      EXPECT_LT(RelativeDifference(own_grouped[i], exact_grouped[i]), tolerance) << i;
    }
  }
}

}  // namespace
}  // namespace trainyard
