#include "worker/model/ops/head_loss.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "models/head_loss_limits.h"
#include "tests/unit/model/gradients.h"

namespace trainyard {
namespace {

struct HeadCase {
  at::Tensor x = at::randn({50, 17}), weight = at::randn({67, 17});
  at::Tensor targets = at::randint(67, {50}, at::kLong);
};

// The loss, and the gradients of three times the loss with respect to x and to the weight.
std::vector<at::Tensor> HeadThenLoss(const HeadCase& c, at::ScalarType type) {
  at::Tensor x = Leaf(c.x.to(type)), weight = Leaf(c.weight.to(type));
  at::Tensor scores = at::matmul(x, weight.t());
  at::Tensor loss = at::cross_entropy_loss(scores, c.targets, {}, at::Reduction::Sum, /*ignore_index=*/-1);
  (loss * 3).backward();
  return {loss.detach(), x.grad(), weight.grad()};
}

std::vector<at::Tensor> Chunked(const HeadCase& c, at::ScalarType type, int64_t max_elements,
                                GradientSink* sink = nullptr, HeadLossKernel kernel = HeadLossKernel::kOwn) {
  at::Tensor x = Leaf(c.x.to(type)), weight = Leaf(c.weight.to(type));
  const std::optional<at::ScalarType> output = type == at::kBFloat16 ? std::optional(at::kFloat) : std::nullopt;
  at::Tensor loss = HeadLossBy(kernel, x, {weight, 0}, c.targets, output, sink, max_elements);
  (loss * 3).backward();
  return {loss.detach(), x.grad(), weight.grad()};
}

TEST(HeadLoss, EqualsTheHeadFollowedByTheLoss_ForAnyNumberOfRowsAtATime) {
  at::manual_seed(5);
  HeadCase c;
  c.targets.narrow(0, 7, 9).fill_(-1);
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (int64_t max_elements : {int64_t{1}, int64_t{67 * 7}, int64_t{67 * 50}, kHeadLossElements}) {
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}}) {
      for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kLibTorch}) {
        const auto found = Chunked(c, type, max_elements, /*sink=*/nullptr, kernel);
        for (size_t i = 0; i < exact.size(); ++i) {
          EXPECT_LT(RelativeDifference(found[i], exact[i]), tolerance) << type << ", tensor " << i;
        }
      }
    }
  }
}

TEST(HeadLoss, WritesTheGradientOfTheWeightIntoTheSink_AndAddsFromTheSecondPassOn) {
  at::manual_seed(5);
  const HeadCase c;
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (const auto& [type, kernel] : {std::pair{at::kFloat, HeadLossKernel::kOwn},
                                     {at::kBFloat16, HeadLossKernel::kOwn},
                                     {at::kFloat, HeadLossKernel::kLibTorch},
                                     {at::kBFloat16, HeadLossKernel::kLibTorch}}) {
    CollectingSink sink({at::full({67, 17}, 5.0f)});
    const auto first = Chunked(c, type, 67 * 7, &sink, kernel);
    EXPECT_FALSE(first[2].defined()) << "the gradient was delivered twice";
    EXPECT_EQ(sink.done(), (std::vector<int>{1}));
    Chunked(c, type, 67 * 7, &sink, kernel);
    EXPECT_LT(RelativeDifference(sink.Claim(0).tensor, exact[2] * 2), type == at::kFloat ? 1e-5 : 3e-2);
  }
}

TEST(HeadLoss, WithoutATargetThatCounts_IsZeroWithGradientsOfZero) {
  at::manual_seed(5);
  HeadCase c;
  c.targets.fill_(-1);
  for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kLibTorch}) {
    for (const at::Tensor& tensor : Chunked(c, at::kFloat, 67 * 7, /*sink=*/nullptr, kernel)) {
      EXPECT_EQ(tensor.abs().sum().item<float>(), 0);
    }
  }
}

TEST(HeadLossOfAFrozenWeight, IgnoresTheSink) {
  at::manual_seed(5);
  const HeadCase c;
  at::Tensor x = Leaf(c.x);
  CollectingSink sink({at::full({67, 17}, 5.0f)});
  HeadLoss(x, {c.weight, 0}, c.targets, std::nullopt, &sink).backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(sink.done(), (std::vector<int>{0}));
}

}  // namespace
}  // namespace trainyard
