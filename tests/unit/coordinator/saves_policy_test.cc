// The coordinator's grants for ready checkpoints, decided from recorded saves and earlier grants.
#include "coordinator/policy/saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

v1::CheckpointReady Ready(uint64_t step, const std::string& hash) {
  v1::CheckpointReady ready;
  ready.set_step(step);
  ready.set_path(absl::StrCat("/run/step-", step));
  ready.set_manifest_hash(hash);
  return ready;
}

class SavesPolicy : public ::testing::Test {
 protected:
  SavesPolicy() {
    head_.set_generation(2);
    head_.mutable_spec()->mutable_train()->set_steps(100);
  }
  // Records the answer, if there is one, and returns it.
  v1::CheckpointGrant Decide(uint64_t step, const std::string& hash) {
    std::optional<v1::CheckpointGrant> grant = DecideGrant(head_, grants_, Ready(step, hash));
    if (!grant.has_value()) ADD_FAILURE() << "step " << step << " counts as a repeated request";
    if (grant.has_value()) AddGrant(*grant, grants_);
    return grant.value_or(v1::CheckpointGrant());
  }
  bool IsRepeated(uint64_t step, const std::string& hash) {
    return !DecideGrant(head_, grants_, Ready(step, hash)).has_value();
  }
  void Record(uint64_t step, uint64_t generation, const std::string& hash) {
    v1::CheckpointInfo& info = *head_.add_checkpoints();
    info.set_step(step);
    info.set_generation(generation);
    info.set_manifest_hash(hash);
  }
  v1::Job head_;
  CheckpointGrants grants_;
};

TEST_F(SavesPolicy, GrantsNewerSteps_AndAnswersARepeatedRequestOnce) {
  EXPECT_FALSE(Decide(40, "a").refused());
  EXPECT_FALSE(Decide(60, "b").refused());
  EXPECT_TRUE(IsRepeated(40, "a")) << "although a later step was granted meanwhile";

  v1::CheckpointGrant other = Decide(60, "c");
  EXPECT_TRUE(other.refused());
  EXPECT_THAT(other.reason(), HasSubstr("other contents of that step, with the manifest hash b"));
  EXPECT_TRUE(IsRepeated(60, "c"));
  EXPECT_EQ(grants_.size(), 3);
}

// A daemon whose disk was full repeats requests that its predecessor had sent; the record of the checkpoint and its
// grant may be gone by then.
TEST_F(SavesPolicy, RequestThatWasAnsweredLongAgo_IsNotRefused) {
  Record(80, /*generation=*/1, "old");
  EXPECT_FALSE(IsRepeated(40, "a")) << "generation 1 was ahead, but generation 2 does not resume from its save";

  Record(90, /*generation=*/2, "c");
  EXPECT_TRUE(IsRepeated(85, "b")) << "step 85 was named and removed, or given up";
  EXPECT_TRUE(IsRepeated(90, "c"));
  EXPECT_THAT(Decide(90, "other").reason(), HasSubstr("other contents of that step, with the manifest hash c"));
  EXPECT_FALSE(Decide(95, "d").refused());
  EXPECT_TRUE(IsRepeated(93, "e")) << "step 93 was given up, because step 95 replaced it";
}

TEST_F(SavesPolicy, InvalidRequests_AreRefused) {
  EXPECT_THAT(Decide(101, "a").reason(), HasSubstr("train.steps is 100"));
  EXPECT_THAT(Decide(40, "").reason(), HasSubstr("without the hash"));
  EXPECT_THAT(Decide(40, std::string(1000, 'a')).reason(), HasSubstr("the hash of its manifest has 1000 bytes"));
  EXPECT_TRUE(DecideGrant(head_, grants_, v1::CheckpointReady())->refused());
  Record(90, /*generation=*/2, "c");
  EXPECT_TRUE(Decide(0, "a").refused()) << "no repeated request: there is no such step";
  std::string huge(1 << 20, 'x');
  EXPECT_LT(Decide(40, huge).ByteSizeLong(), 10'000u) << "the stored answer is small";
}

TEST_F(SavesPolicy, Grants_AreLimited_AndRefusalsAreDroppedFirst) {
  Decide(40, "a");
  for (int i = 0; i < 100; ++i) Decide(40, absl::StrCat("other-", i));
  EXPECT_EQ(grants_.size(), kGrantsMax);
  EXPECT_NE(FindGrant(grants_, 2, 40, "a"), nullptr);
  EXPECT_NE(FindGrant(grants_, 2, 40, "other-99"), nullptr);
  for (uint64_t step = 41; step <= 90; ++step) Decide(step, "b");
  EXPECT_EQ(grants_.size(), kGrantsMax);
  EXPECT_EQ(NewestGranted(grants_)->step(), 90u);
}

TEST_F(SavesPolicy, RecordedSave_RemovesItsGrant_AndRefusalsOfOlderSteps) {
  Decide(40, "a");
  Decide(40, "other");
  Decide(60, "b");
  ForgetGrants(2, 60, grants_);
  EXPECT_EQ(grants_.size(), 1) << "the refusal of an older step is removed, too";
  EXPECT_EQ(NewestGranted(grants_)->step(), 40u);
  ForgetGrants(3, 40, grants_);
  EXPECT_EQ(grants_.size(), 1) << "the grant of another generation stays";
}

TEST_F(SavesPolicy, NewestResumeStep_IsRecordedOrGranted) {
  EXPECT_FALSE(NewestResumeStep(head_, grants_).has_value());
  Decide(40, "a");
  EXPECT_EQ(NewestResumeStep(head_, grants_), 40u);
  head_.add_checkpoints()->set_step(30);
  EXPECT_EQ(NewestResumeStep(head_, grants_), 40u);
  head_.add_checkpoints()->set_step(50);
  EXPECT_EQ(NewestResumeStep(head_, grants_), 50u);
}

}  // namespace
}  // namespace trainyard
