#include "worker/parallel/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "worker/parallel/deal.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(PlanBuckets, TakesParametersFromTheLastAndClosesABucketOnceItIsFull) {
  BucketPlan plan = PlanBuckets({10, 5, 20, 5}, {true, false, true, false}, 25);

  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_THAT(plan.buckets[0].parameters, ElementsAre(2, 3)) << "the decayed one lies first";
  EXPECT_EQ(plan.buckets[0].num_decayed, 20);
  EXPECT_EQ(plan.buckets[0].num_elements, 25);
  EXPECT_THAT(plan.buckets[1].parameters, ElementsAre(0, 1));
  EXPECT_EQ(plan.buckets[1].start, 25);
  EXPECT_THAT(plan.offsets, ElementsAre(25, 35, 0, 20));
  EXPECT_THAT(plan.bucket_of, ElementsAre(1, 1, 0, 0));
  EXPECT_EQ(plan.num_elements, 40);
}

TEST(PlanBuckets, ASmallModelIsOneBucket) {
  EXPECT_EQ(PlanBuckets({1, 2, 3}, {true, true, true}, 1000).buckets.size(), 1u);
}

TEST(PlanBuckets, AParameterLargerThanABucketHasOneOfItsOwn) {
  EXPECT_EQ(PlanBuckets({100, 100}, {true, true}, 10).buckets.size(), 2u);
}

// Every element has one place, every bucket its decayed part first. A failure prints the seed that repeats it.
TEST(PlanBuckets, RandomShapesFillTheBufferWithoutGapsOrOverlap) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> sizes(1 + random() % 30);
    std::vector<bool> decays(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = 1 + random() % 50;
      decays[i] = random() % 2 == 0;
    }
    BucketPlan plan = PlanBuckets(sizes, decays, 1 + random() % 100);

    int64_t next = 0;
    for (const BucketPlan::Bucket& bucket : plan.buckets) {
      ASSERT_EQ(bucket.start, next) << "seed " << seed;
      for (int i : bucket.parameters) {
        ASSERT_EQ(plan.offsets[i], next) << "seed " << seed;
        ASSERT_EQ(decays[i], next < bucket.start + bucket.num_decayed) << "seed " << seed;
        next += sizes[i];
      }
      ASSERT_EQ(next, bucket.start + bucket.num_elements) << "seed " << seed;
    }
    ASSERT_EQ(next, plan.num_elements) << "seed " << seed;
  }
}

TEST(DealStep, DealsLikeCards) {
  EXPECT_EQ(DealStep(12, 2, 0, 4).num_micro_batches, 6);
  EXPECT_THAT(DealStep(12, 2, 0, 4).micro_batches, ElementsAre(0, 4));
  EXPECT_THAT(DealStep(12, 2, 1, 4).micro_batches, ElementsAre(1, 5));
  EXPECT_THAT(DealStep(12, 2, 3, 4).micro_batches, ElementsAre(3));
  EXPECT_THAT(DealStep(4, 2, 3, 4).micro_batches, IsEmpty());
}

TEST(DealStep, EveryMicroBatchGoesToOneRank) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    std::vector<int> dealt(20);
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t i : DealStep(60, 3, rank, ranks).micro_batches) dealt[i]++;
    }
    EXPECT_THAT(dealt, testing::Each(1)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace trainyard
