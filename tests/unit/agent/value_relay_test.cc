// Rendezvous values on their way from a trainer through the daemon to the coordinator, and the answers to the puts.
#include "worker/agent/value_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const TrainerId kRank = {JobId("job23456"), Generation(1), 0};
const GroupId kGroup = GroupOf(kRank);

class ValueRelayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cache_.Admit(kRank, "token");
    relay_.Follow(kGroup);
  }
  void Put(const std::string& name, const std::string& value, std::optional<absl::Status>* result) {
    relay_.Put(kRank, name, value, [result](absl::Status status) { *result = std::move(status); });
  }
  void Put(const std::string& name, const std::string& value) { Put(name, value, &result_); }
  // A message of the coordinator with these values.
  static v1::StoreValues ReceivedValues(const std::map<std::string, std::string>& values, uint64_t generation = 1) {
    v1::StoreValues reported;
    reported.set_job_id("job23456");
    reported.set_generation(generation);
    v1::StoreValueList list;
    for (const auto& [name, value] : values) {
      list.add_values()->set_name(name);
      list.mutable_values()->rbegin()->set_value(value);
    }
    reported.set_values(list.SerializeAsString());
    return reported;
  }
  bool IsCached(const std::string& name, const std::string& value) { return cache_.Holds(kGroup, name, value); }

  SimulatedClock clock_;
  ValueCache cache_;
  std::vector<std::string> sent_;  // "name=value"
  ValueRelay relay_{cache_, clock_, [this](const v1::AgentMessage& message) {
                      EXPECT_EQ(message.put().job_id(), "job23456");
                      EXPECT_EQ(message.put().generation(), 1);
                      for (const v1::StoreValue& value : message.put().values()) {
                        sent_.push_back(absl::StrCat(value.name(), "=", value.value()));
                      }
                    }};
  std::optional<absl::Status> result_;
};

TEST_F(ValueRelayTest, Put_IsAnsweredOnceTheCoordinatorHasIt) {
  relay_.Attach();

  Put("a", "1");
  EXPECT_THAT(sent_, ElementsAre("a=1"));
  EXPECT_FALSE(result_.has_value());
  EXPECT_FALSE(IsCached("a", "1"));
  relay_.Receive(ReceivedValues({{"a", "1"}, {"b", "2"}}));

  EXPECT_EQ(result_, absl::OkStatus());
  EXPECT_TRUE(IsCached("a", "1"));
  EXPECT_TRUE(IsCached("b", "2"));
  result_.reset();
  Put("a", "1");
  EXPECT_EQ(result_, absl::OkStatus()) << "the same value is not sent a second time";
  EXPECT_THAT(sent_, ElementsAre("a=1"));
}

TEST_F(ValueRelayTest, SecondValueOfAName_IsRefusedByTheDaemonOrTheCoordinator) {
  relay_.Attach();
  Put("a", "1");

  std::optional<absl::Status> second, third;
  Put("a", "2", &second);
  EXPECT_TRUE(absl::IsAlreadyExists(*second));
  relay_.Receive(ReceivedValues({{"a", "3"}}));
  EXPECT_TRUE(absl::IsAlreadyExists(*result_)) << "another host was first";

  Put("b", "1", &third);
  v1::StoreValues refusal = ReceivedValues({});
  refusal.add_refused()->set_name("b");
  refusal.mutable_refused(0)->set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  refusal.mutable_refused(0)->set_message("sealed");
  relay_.Receive(refusal);
  EXPECT_EQ(*third, absl::FailedPreconditionError("sealed"));
  sent_.clear();
  relay_.Detach();
  relay_.Attach();
  EXPECT_THAT(sent_, IsEmpty()) << "refused values are not put again";
}

TEST_F(ValueRelayTest, AbsentCoordinator_IsUnavailable_AndGetsTheValueWhenItIsBack) {
  Put("a", "1");
  EXPECT_TRUE(absl::IsUnavailable(*result_));
  EXPECT_THAT(sent_, IsEmpty());

  relay_.Attach();
  EXPECT_THAT(sent_, ElementsAre("a=1"));
  std::optional<absl::Status> waits;
  Put("a", "1", &waits);
  relay_.Detach();

  EXPECT_TRUE(absl::IsUnavailable(*waits));
  sent_.clear();
  relay_.Attach();
  EXPECT_THAT(sent_, ElementsAre("a=1")) << "values that the earlier coordinator may have had are put again";
}

TEST_F(ValueRelayTest, CoordinatorThatDoesNotAnswerForFiveSeconds_IsUnavailable) {
  relay_.Attach();
  Put("a", "1");
  absl::Time deadline = relay_.NextDeadline();
  EXPECT_EQ(deadline, clock_.TimeNow() + absl::Seconds(5));

  relay_.Expire(deadline - absl::Milliseconds(1));
  EXPECT_FALSE(result_.has_value());
  relay_.Expire(deadline);

  EXPECT_TRUE(absl::IsUnavailable(*result_));
  EXPECT_EQ(relay_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(ValueRelayTest, FormedGroup_AcceptsNoNewValuesAndPutsNoneAgain) {
  relay_.Attach();
  Put("a", "1");
  relay_.Receive(ReceivedValues({{"a", "1"}}));

  relay_.Seal(kGroup);

  std::optional<absl::Status> late, same;
  Put("b", "2", &late);
  Put("a", "1", &same);
  EXPECT_TRUE(absl::IsFailedPrecondition(*late));
  EXPECT_EQ(*same, absl::OkStatus());
  sent_.clear();
  relay_.Detach();
  relay_.Attach();
  EXPECT_THAT(sent_, IsEmpty());
}

TEST_F(ValueRelayTest, ValuesOfAnotherGeneration_DoNotAnswerAPut) {
  relay_.Attach();
  Put("a", "1");

  relay_.Receive(ReceivedValues({{"a", "1"}}, /*generation=*/2));

  EXPECT_FALSE(result_.has_value());
}

TEST_F(ValueRelayTest, EndOfTheGroup_AbortsItsWaitsAndLaterPuts) {
  relay_.Attach();
  Put("a", "1");

  relay_.Forget(kGroup);

  EXPECT_TRUE(absl::IsAborted(*result_));
  std::optional<absl::Status> late;
  Put("b", "2", &late);
  EXPECT_TRUE(absl::IsAborted(*late));
}

// Regression: refused values counted against the limit of the host, so that a host with many refusals could put no more
// values.
TEST_F(ValueRelayTest, RefusedValues_DoNotCountAgainstTheLimitOfTheHost) {
  relay_.Attach();
  const std::string large(limits::kStoreValueBytes - 100, 'x');
  const size_t tries = limits::kStoreGenerationBytes / large.size() + 2;
  for (size_t i = 0; i < tries; ++i) {
    Put("refused", large);
    v1::StoreValues refusal = ReceivedValues({});
    refusal.add_refused()->set_name("refused");
    relay_.Receive(refusal);
    Put("lost", large);
    relay_.Receive(ReceivedValues({{"lost", "another host was first"}}));
  }

  Put("last", large);
  relay_.Receive(ReceivedValues({{"last", large}}));

  EXPECT_EQ(result_, absl::OkStatus());
}

TEST_F(ValueRelayTest, ValueOverTheLimit_IsRefusedByTheDaemon) {
  relay_.Attach();

  Put("big", std::string(limits::kStoreValueBytes + 1, 'x'));

  EXPECT_TRUE(absl::IsResourceExhausted(*result_));
  EXPECT_THAT(sent_, IsEmpty());
}

}  // namespace
}  // namespace trainyard::agent
