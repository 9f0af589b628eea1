// Webhooks in the coordinator's core: when they are due, also after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kUrl[] = "https://example.org/hook";

struct EndedJob {
  EndedJob() : host(harness, "w1", 2, 11) {
    host.Attach();
    v1::JobSpec spec = MakeSpec(2);
    spec.mutable_on_end()->set_webhook(kUrl);
    harness.Submit(spec, kJob);
    BringToRunning(harness, host, kJob);
    EXPECT_TRUE(harness.webhooks.empty());
    host.Report(Key(kJob, 1, 0), 1, 10);
    for (uint32_t rank = 0; rank < 2; ++rank) host.Finish(Key(kJob, 1, rank), 10);
  }
  void RestartCoordinator() {
    harness.webhooks.clear();
    harness.Restart();
  }

  Harness harness;
  FakeHost host;
};

TEST(CoreWebhook, IsDueAtTheEndOfTheJob_UntilItIsDelivered) {
  EndedJob one;
  ASSERT_EQ(one.harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
  ASSERT_THAT(one.harness.webhooks, SizeIs(1));
  EXPECT_EQ(one.harness.webhooks[0].url, kUrl);
  EXPECT_EQ(one.harness.webhooks[0].job.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_GT(one.harness.webhooks[0].job.finished_unix_ms(), 0);

  one.RestartCoordinator();
  ASSERT_THAT(one.harness.webhooks, SizeIs(1)) << "the coordinator ended before the delivery";
  one.harness.Handle(WebhookDone{JobId(kJob), 1, ""});
  one.RestartCoordinator();
  EXPECT_THAT(one.harness.webhooks, SizeIs(0));
}

TEST(CoreWebhook, ThatIsGivenUp_IsNotRepeated_AndUnknownJobsAreIgnored) {
  EndedJob one;
  one.harness.Handle(WebhookDone{JobId("unknown00001"), 1, ""});
  one.harness.Handle(WebhookDone{JobId(kJob), 10, "the server answered with status 500"});
  one.RestartCoordinator();
  EXPECT_THAT(one.harness.webhooks, SizeIs(0));
}

TEST(CoreWebhook, IsNotSentByACoordinatorThatSendsNone_ButByTheNextOneThatDoes) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_on_end()->set_webhook(kUrl);
  harness.Submit(spec, kJob);
  harness.sends_webhooks = false;
  harness.Restart();
  harness.Cancel(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(harness.log, Contains(HasSubstr("its webhook is not sent, because this coordinator sends none")));
  harness.Restart();
  EXPECT_THAT(harness.webhooks, SizeIs(0));

  harness.sends_webhooks = true;
  harness.Restart();
  EXPECT_THAT(harness.webhooks, SizeIs(1));
}

TEST(CoreWebhook, OfACancelledJob_ContainsItsState) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_on_end()->set_webhook(kUrl);
  harness.Submit(spec, kJob);
  harness.Handle(CancelJob{CallId(77), JobId(kJob), "enough"});

  ASSERT_THAT(harness.webhooks, SizeIs(1));
  EXPECT_EQ(harness.webhooks[0].job.state(), v1::JOB_STATE_CANCELLED);
}

}  // namespace
}  // namespace trainyard
