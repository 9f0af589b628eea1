// The rendezvous values that a daemon has received, and the waits of its trainers for them.
#include "worker/agent/value_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace trainyard::agent {
namespace {

const TrainerId kPutter = {JobId("job23456"), Generation(1), 0};
const GroupId kCachedGroup = GroupOf(kPutter);
const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
const absl::Time kLater = kNow + absl::Seconds(10);

class ValueCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { cache_.Admit(kPutter, "token"); }
  ValueCache::Done Into(std::optional<absl::StatusOr<std::string>>* result) {
    return [result](absl::StatusOr<std::string> value) { *result = std::move(value); };
  }
  ValueCache cache_;
  std::optional<absl::StatusOr<std::string>> result_;
};

// Regression: a rank ended because its call for a value reached a daemon that was starting and did not know it yet.
TEST_F(ValueCacheTest, UnknownTrainer_MayCallAgain_UntilAllTrainersAreAdmitted) {
  const TrainerId other = {JobId("job23456"), Generation(1), 1};
  cache_.SetComplete(false);
  EXPECT_TRUE(absl::IsUnavailable(cache_.Check(other, "token")));
  EXPECT_EQ(cache_.Check(kPutter, "token"), absl::OkStatus());

  cache_.SetComplete(true);

  EXPECT_TRUE(absl::IsNotFound(cache_.Check(other, "token")));
}

TEST_F(ValueCacheTest, KnownValue_IsReturnedImmediately) {
  cache_.Add(kCachedGroup, "a", "1");

  cache_.Get(kCachedGroup, "a", kLater, Into(&result_));

  EXPECT_EQ(**result_, "1");
}

TEST_F(ValueCacheTest, Wait_EndsWhenTheValueArrives) {
  cache_.Get(kCachedGroup, "a", kLater, Into(&result_));
  cache_.Add(kCachedGroup, "b", "2");
  EXPECT_FALSE(result_.has_value());
  EXPECT_EQ(cache_.NextDeadline(), kLater);

  cache_.Add(kCachedGroup, "a", "1");

  EXPECT_EQ(**result_, "1");
  EXPECT_EQ(cache_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(ValueCacheTest, Wait_EndsAtItsDeadline) {
  cache_.Get(kCachedGroup, "a", kLater, Into(&result_));
  cache_.Expire(kLater - absl::Milliseconds(1));
  EXPECT_FALSE(result_.has_value());

  cache_.Expire(kLater);

  EXPECT_TRUE(absl::IsDeadlineExceeded(result_->status()));
}

TEST_F(ValueCacheTest, Wait_EndsWithItsGenerationAndLaterCallsAreRefused) {
  cache_.Get(kCachedGroup, "a", kLater, Into(&result_));

  cache_.End(kCachedGroup, "generation 1 is over");

  EXPECT_TRUE(absl::IsAborted(result_->status()));
  std::optional<absl::StatusOr<std::string>> later;
  cache_.Get(kCachedGroup, "a", kLater, Into(&later));
  EXPECT_TRUE(absl::IsAborted(later->status()));
  EXPECT_TRUE(absl::IsAborted(cache_.Check(kPutter, "token")));
}

TEST_F(ValueCacheTest, SealedStore_ReturnsItsValuesAndRefusesOthers) {
  cache_.Add(kCachedGroup, "a", "1");
  cache_.Get(kCachedGroup, "b", kLater, Into(&result_));

  cache_.Seal(kCachedGroup);

  EXPECT_TRUE(absl::IsFailedPrecondition(result_->status()));
  std::optional<absl::StatusOr<std::string>> known;
  cache_.Get(kCachedGroup, "a", kLater, Into(&known));
  EXPECT_EQ(**known, "1");
  EXPECT_TRUE(cache_.IsSealed(kCachedGroup));
}

TEST_F(ValueCacheTest, CancelledWait_IsNotAnswered) {
  ValueCache::WaitId wait = cache_.Get(kCachedGroup, "a", kLater, Into(&result_));

  cache_.Cancel(wait);
  cache_.Add(kCachedGroup, "a", "1");

  EXPECT_FALSE(result_.has_value());
}

TEST_F(ValueCacheTest, Check_IdentifiesTrainersByTheirTokens) {
  EXPECT_EQ(cache_.Check(kPutter, "token"), absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(cache_.Check(kPutter, "guess")));
  EXPECT_TRUE(absl::IsNotFound(cache_.Check({JobId("other"), Generation(1), 0}, "token")));
  const TrainerId without_token = {JobId("job23456"), Generation(1), 1};
  cache_.Admit(without_token, "");
  EXPECT_TRUE(absl::IsPermissionDenied(cache_.Check(without_token, "")));
}

TEST_F(ValueCacheTest, EndedGroups_AreForgottenEventually) {
  for (uint64_t generation = 2; generation < 500; ++generation) {
    TrainerId id = {JobId("job23456"), Generation(generation), 0};
    cache_.Admit(id, "token");
    cache_.End(GroupOf(id), "over");
  }

  EXPECT_TRUE(absl::IsNotFound(cache_.Check({JobId("job23456"), Generation(10), 0}, "token")));
  EXPECT_TRUE(absl::IsAborted(cache_.Check({JobId("job23456"), Generation(499), 0}, "token")));
  EXPECT_EQ(cache_.Check(kPutter, "token"), absl::OkStatus());
}

}  // namespace
}  // namespace trainyard::agent
