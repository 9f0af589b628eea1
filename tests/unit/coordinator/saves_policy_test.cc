// The coordinator's grants for ready checkpoints, decided from recorded saves and earlier grants.
#include "coordinator/policy/saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  v1::CheckpointGrant Decide(uint64_t step, const std::string& hash) {
    v1::CheckpointGrant grant = DecideGrant(head_, grants_, Ready(step, hash));
    if (FindGrant(grants_, grant.generation(), step, hash) == nullptr) AddGrant(grant, grants_);
    return grant;
  }
  v1::Job head_;
  CheckpointGrants grants_;
};

TEST_F(SavesPolicy, GrantsNewerSteps_AndRepeatsItsAnswer) {
  EXPECT_FALSE(Decide(40, "a").refused());
  EXPECT_FALSE(Decide(60, "b").refused());
  EXPECT_FALSE(Decide(40, "a").refused()) << "although a later step was granted meanwhile";

  v1::CheckpointGrant other = Decide(60, "c");
  EXPECT_TRUE(other.refused());
  EXPECT_THAT(other.reason(), HasSubstr("other contents of that step, with the manifest hash b"));
  EXPECT_THAT(Decide(60, "c").reason(), HasSubstr("other contents"));
  EXPECT_THAT(Decide(50, "d").reason(), HasSubstr("has already saved step 60"));
  EXPECT_EQ(grants_.size(), 4);
}

TEST_F(SavesPolicy, OlderStep_IsRefusedOnlyIfThisGenerationRecordedANewerOne) {
  v1::CheckpointInfo& old = *head_.add_checkpoints();
  old.set_step(80);
  old.set_generation(1);
  EXPECT_FALSE(Decide(40, "a").refused()) << "generation 1 was ahead, but generation 2 does not resume from its save";
  v1::CheckpointInfo& recorded = *head_.add_checkpoints();
  recorded.set_step(90);
  recorded.set_generation(2);
  EXPECT_TRUE(Decide(85, "b").refused());
  EXPECT_FALSE(Decide(95, "c").refused());
}

TEST_F(SavesPolicy, InvalidRequests_AreRefused) {
  EXPECT_THAT(Decide(101, "a").reason(), HasSubstr("train.steps is 100"));
  EXPECT_THAT(Decide(40, "").reason(), HasSubstr("without the hash"));
  EXPECT_THAT(Decide(40, std::string(1000, 'a')).reason(), HasSubstr("the hash of its manifest has 1000 bytes"));
  EXPECT_TRUE(DecideGrant(head_, grants_, v1::CheckpointReady()).refused());
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
  Decide(60, "b");
  Decide(50, "late");
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
