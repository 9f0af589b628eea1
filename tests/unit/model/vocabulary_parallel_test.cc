// The loss of a vocabulary that tensor ranks divide.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/model_part.h"
#include "tests/unit/model/gradients.h"
#include "tests/unit/model/tensor_ranks.h"
#include "worker/model/ops/vocabulary_parallel.h"

namespace trainyard {
namespace {

// `weight` is parameter 0.
VocabularyRows RowsFrom(int64_t first, const at::Tensor& weight, CountingGroup& group) {
  return {.weight = {weight, 0}, .first = first, .group = &group};
}

TEST(VocabularyParallel, LossInPieces_IsThatOfAllScores_AndTheGradientGoesToTheSink) {
  const int64_t rows = 11, width = 6, vocabulary = 23;
  at::manual_seed(1);
  const at::Tensor x = at::randn({rows, width}, at::kDouble), weight = at::randn({vocabulary, width}, at::kDouble);
  at::Tensor targets = at::randint(0, vocabulary, {rows}, at::kLong);
  targets.narrow(0, 4, 2).fill_(-1);
  const at::Tensor whole_x = Leaf(x), whole_weight = Leaf(weight);
  const at::Tensor expected =
      at::cross_entropy_loss(at::linear(whole_x, whole_weight), targets, {}, at::Reduction::Sum, -1);
  (expected * 3).backward();

  OnTensorRanks(3, [&](CountingGroup& group) {
    const SplitRange range = RangeOfTensorRank(vocabulary, 1, group.rank(), group.size());
    for (const bool keeps_scores : {false, true}) {
      const at::Tensor own_x = Leaf(x), own = Leaf(weight.narrow(0, range.first, range.count));
      const at::Tensor place = at::full_like(own.detach(), 2);
      CollectingSink sink({place});
      const VocabularyRows held = RowsFrom(range.first, own, group);

      const at::Tensor loss = VocabularyLoss(own_x, held, targets, {}, keeps_scores, &sink, /*max_elements=*/30);
      (loss * 3).backward();

      EXPECT_LE(RelativeDifference(loss, expected), 1e-14);
      EXPECT_LE(RelativeDifference(own_x.grad(), whole_x.grad()), 1e-13);
      EXPECT_LE(RelativeDifference(place, whole_weight.grad().narrow(0, range.first, range.count)), 1e-13);
      EXPECT_THAT(sink.done(), testing::ElementsAre(1));
    }
    EXPECT_EQ(group.gathers, 2);
    EXPECT_EQ(group.sums, 2);
  });
}

// 500 pieces are added; 16 bits lack the digits for what one of them adds to the sum. The probabilities are 1/8.
TEST(VocabularyParallel, AGradientOf16Bits_IsRoundedOnce) {
  const at::Tensor x = at::ones({2'000, 8}, at::kBFloat16), weight = at::zeros({8, 8}, at::kBFloat16);
  const at::Tensor targets = at::zeros({2'000}, at::kLong);

  OnTensorRanks(2, [&](CountingGroup& group) {
    const at::Tensor own = Leaf(weight.narrow(0, group.rank() * 4, 4));
    const at::Tensor place = at::full_like(own.detach(), 2);
    CollectingSink sink({place});
    const VocabularyRows held = RowsFrom(group.rank() * 4, own, group);

    const at::Tensor loss =
        VocabularyLoss(Leaf(x), held, targets, at::kFloat, /*keeps_scores=*/false, &sink, /*max_elements=*/16);
    loss.backward();

    const at::Tensor expected = at::ones({4, 8}, at::kFloat) * 250;
    if (group.rank() == 0) expected.select(0, 0).fill_(-1750);
    EXPECT_LT(RelativeDifference(place, expected), 1e-2);
    EXPECT_THAT(sink.done(), testing::ElementsAre(1));
  });
}

TEST(VocabularyParallel, LargeScores_DoNotOverflow) {
  const at::Tensor x = at::ones({2, 1}, at::kFloat), weight = at::arange(8, at::kFloat).view({8, 1}) * 500;
  const at::Tensor targets = at::arange(2, at::kLong) + 6;

  OnTensorRanks(2, [&](CountingGroup& group) {
    const at::Tensor own_x = Leaf(x), own = Leaf(weight.narrow(0, group.rank() * 4, 4));
    const VocabularyRows held = RowsFrom(group.rank() * 4, own, group);

    const at::Tensor loss = VocabularyLoss(own_x, held, targets, {}, /*keeps_scores=*/true);
    loss.backward();

    EXPECT_EQ(loss.item<float>(), 500);
    EXPECT_TRUE(own_x.grad().isfinite().all().item<bool>());
    EXPECT_TRUE(own.grad().isfinite().all().item<bool>());
  });
}

// The loss of each row is 100 + ln 7, and their sum is above the largest number of fp16.
TEST(VocabularyParallel, LossOfScoresOf16Bits_IsASumInFp32) {
  const at::Tensor x = at::ones({700, 1}, at::kHalf), targets = at::zeros({700}, at::kLong);
  at::Tensor weight = at::zeros({8, 1}, at::kHalf);
  weight.select(0, 0).fill_(-100);

  OnTensorRanks(2, [&](CountingGroup& group) {
    const VocabularyRows held = RowsFrom(group.rank() * 4, weight.narrow(0, group.rank() * 4, 4), group);

    const at::Tensor loss = VocabularyLoss(x, held, targets, {}, /*keeps_scores=*/true);

    const double expected = 700 * (100 + std::log(7.0));
    EXPECT_NEAR(loss.item<double>(), expected, 1e-4 * expected);
  });
}

}  // namespace
}  // namespace trainyard
