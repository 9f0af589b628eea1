// How long hosts keep the snapshots of a job that waits to start again, with the production core on a manual clock.
#include <gmock/gmock.h>

#include "coordinator/policy/queue_rules.h"
#include "tests/unit/coordinator/two_hosts.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kOther[] = "job00000002";

// A job that has lost a rank and cannot start again, because one of its hosts is cordoned.
struct WaitingHosts : TwoHosts {
  WaitingHosts() {
    harness.SetHostState("w2", v1::SetHostRequest::ACTION_CORDON);
    second.Kill(Key(kJob, 1, 1), 9);
    first.Apply();
    harness.Advance(kKeepSlots + absl::Seconds(5));
  }
};

TEST(CoreSnapshots, OfAJobThatWaitsToStartAgain_AreKeptUntilAnotherJobUsesItsSlots) {
  WaitingHosts two;
  ASSERT_EQ(two.Get().state(), v1::JOB_STATE_RECOVERING) << two.Get().reason();
  EXPECT_THAT(two.first.desired().jobs(), ElementsAre(kJob));

  two.harness.Submit(MakeSpec(1), kOther);

  ASSERT_EQ(two.harness.StateOf(kOther), v1::JOB_STATE_PLACED);
  EXPECT_THAT(two.first.desired().jobs(), ElementsAre(kOther)) << "the other job needs the memory";
}

TEST(CoreSnapshots, OfAJobThatWaitsToStartAgain_AreRemovedAfterATime_AndTheNextGroupHasItsOwn) {
  WaitingHosts two;
  two.harness.Advance(kKeepSnapshots - kKeepSlots - absl::Seconds(15));
  EXPECT_THAT(two.first.desired().jobs(), ElementsAre(kJob));

  two.harness.Advance(absl::Seconds(20));
  EXPECT_THAT(two.first.desired().jobs(), IsEmpty());
  EXPECT_THAT(two.second.desired().jobs(), IsEmpty());

  two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_UNCORDON);
  ASSERT_EQ(two.Get().state(), v1::JOB_STATE_PLACED) << two.Get().reason();
  EXPECT_THAT(two.first.desired().jobs(), ElementsAre(kJob));
}

}  // namespace
}  // namespace trainyard
