#include "worker/model/ops/head_loss.h"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "models/head_loss_limits.h"
#include "tests/unit/model/gradients.h"
#include "worker/model/ops/row_cross_entropy.h"

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
  const std::optional<at::ScalarType> output = weight.element_size() == 2 ? std::optional(at::kFloat) : std::nullopt;
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
      for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
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
                                     {at::kFloat, HeadLossKernel::kPadded},
                                     {at::kBFloat16, HeadLossKernel::kPadded},
                                     {at::kHalf, HeadLossKernel::kPadded}}) {
    CollectingSink sink({at::full({67, 17}, 5.0f)});
    const auto first = Chunked(c, type, 67 * 7, &sink, kernel);
    EXPECT_FALSE(first[2].defined()) << "the gradient was delivered twice";
    EXPECT_EQ(sink.done(), (std::vector<int>{1}));
    Chunked(c, type, 67 * 7, &sink, kernel);
    EXPECT_LT(RelativeDifference(sink.Claim(0).tensor, exact[2] * 2), type == at::kFloat ? 1e-5 : 3e-2);
  }
}

// 500 pieces are added; 16 bits lack the digits for what one of them adds to the sum.
TEST(HeadLoss, RoundsAGradientOf16BitsOnce) {
  HeadCase c{.x = at::full({2'000, 8}, 1.0f), .weight = at::zeros({67, 8}), .targets = at::zeros({2'000}, at::kLong)};
  c.targets.narrow(0, 0, 500).fill_(66);
  c.targets.narrow(0, 500, 8).fill_(-1);
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    CollectingSink sink({at::full({67, 8}, 5.0f).to(type)});
    Chunked(c, type, /*max_elements=*/67 * 4, &sink);
    EXPECT_LT(RelativeDifference(sink.Claim(0).tensor, exact[2]), 1e-2) << type;
    EXPECT_EQ(sink.done(), (std::vector<int>{1}));
  }
}

TEST(HeadLoss, WithoutATargetThatCounts_IsZeroWithGradientsOfZero) {
  at::manual_seed(5);
  HeadCase c;
  c.targets.fill_(-1);
  for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
    for (const at::Tensor& tensor : Chunked(c, at::kFloat, 67 * 7, /*sink=*/nullptr, kernel)) {
      EXPECT_EQ(tensor.abs().sum().item<float>(), 0);
    }
  }
}

TEST(HeadLossOfAFrozenWeight, IgnoresTheSink) {
  at::manual_seed(5);
  const HeadCase c;
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
    at::Tensor x = Leaf(c.x);
    CollectingSink sink({at::full({67, 17}, 5.0f)});
    (HeadLossBy(kernel, x, {c.weight, 0}, c.targets, std::nullopt, &sink) * 3).backward();
    EXPECT_LT(RelativeDifference(x.grad(), exact[1]), 1e-5);
    EXPECT_EQ(sink.done(), (std::vector<int>{0}));
  }
}

TEST(HeadLossOfAFrozenInput, HasTheGradientOfTheWeight) {
  at::manual_seed(5);
  const HeadCase c;
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
    at::Tensor weight = Leaf(c.weight);
    (HeadLossBy(kernel, c.x, {weight, 0}, c.targets, std::nullopt, /*sink=*/nullptr) * 3).backward();
    EXPECT_LT(RelativeDifference(weight.grad(), exact[2]), 1e-5);
  }
}

TEST(HeadLoss, WithoutGradients_IsTheSame) {
  at::manual_seed(5);
  const HeadCase c;
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
    c10::NoGradGuard no_grad;
    const at::Tensor loss = HeadLossBy(kernel, Leaf(c.x), {Leaf(c.weight), 0}, c.targets, std::nullopt, nullptr);
    EXPECT_LT(RelativeDifference(loss, exact[0]), 1e-5);
  }
}

// The loss of each row is 100 + ln 66, and their sum is above the largest number of fp16.
TEST(HeadLoss, OfScoresOf16Bits_IsASumInFp32) {
  HeadCase c{.x = at::full({700, 8}, 1.0f), .weight = at::zeros({67, 8}), .targets = at::zeros({700}, at::kLong)};
  c.weight.select(0, 0).fill_(-12.5);
  const auto exact = HeadThenLoss(c, at::kDouble);
  for (at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor scores = at::matmul(c.x, c.weight.t()).to(type);
    EXPECT_LT(RelativeDifference(LossOfScores(scores, c.targets), exact[0]), 1e-4) << type;
    for (HeadLossKernel kernel : {HeadLossKernel::kOwn, HeadLossKernel::kPadded}) {
      at::Tensor x = Leaf(c.x.to(type)), weight = Leaf(c.weight.to(type));
      at::Tensor loss = HeadLossBy(kernel, x, {weight, 0}, c.targets, type, /*sink=*/nullptr);
      (loss * 3).backward();
      EXPECT_LT(RelativeDifference(loss, exact[0]), 1e-4) << type;
      EXPECT_LT(RelativeDifference(x.grad(), exact[1]), 3e-2) << type;
      EXPECT_LT(RelativeDifference(weight.grad(), exact[2]), 3e-2) << type;
    }
  }
}

// With so small a factor of the loss, the gradient of the weight is below the normal numbers of fp16.
TEST(PaddedHeadLoss, InFp16_KeepsTheDigitsOfAGradientWithASmallSeed) {
  at::manual_seed(5);
  const HeadCase c;
  const auto exact = HeadThenLoss(c, at::kDouble);
  at::Tensor x = Leaf(c.x.to(at::kHalf)), weight = Leaf(c.weight.to(at::kHalf));
  CollectingSink sink({at::zeros({67, 17})});
  const double seed = 1.0 / (1 << 24);
  (HeadLossBy(HeadLossKernel::kPadded, x, {weight, 0}, c.targets, at::kFloat, &sink) * seed).backward();
  EXPECT_LT(RelativeDifference(sink.Claim(0).tensor / seed * 3, exact[2]), 1e-2);
}

TEST(CrossEntropyOfRows, SubtractsOneBeforeItRounds) {
  at::Tensor scores = at::zeros({3, 64});
  for (const auto& [row, score] : {std::pair{0, 8.0}, {1, 11.0}, {2, 14.0}}) scores[row][5] = score;
  const at::Tensor targets = at::full({3}, 5, at::kLong);
  at::Tensor exact = scores.to(at::kDouble), found = scores.to(at::kBFloat16);
  CrossEntropyOfRows(exact, targets, /*columns=*/64, /*factor=*/1, /*writes_gradients=*/true);

  CrossEntropyOfRows(found, targets, /*columns=*/64, /*factor=*/1, /*writes_gradients=*/true);

  EXPECT_TRUE(at::allclose(found.to(at::kDouble), exact, /*rtol=*/1.0 / 128, /*atol=*/1e-9)) << found.select(1, 5);
}

}  // namespace
}  // namespace trainyard
