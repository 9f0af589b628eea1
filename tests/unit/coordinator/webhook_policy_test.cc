// What follows an attempt to deliver a webhook, as policy/webhook decides.
#include "coordinator/policy/webhook.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

using Act = WebhookDecision::Act;

TEST(Webhook, IsDelivered_IfTheServerAcceptsIt) {
  EXPECT_EQ(DecideWebhook(1, {.status = 200}).act, Act::kDone);
  EXPECT_EQ(DecideWebhook(10, {.status = 204}).act, Act::kDone);
}

TEST(Webhook, IsRetriedForMinutes_IfTheServerIsAway) {
  absl::Duration total;
  for (int attempts = 1; attempts < 10; ++attempts) {
    for (int status : {0, 408, 429, 500, 503}) {
      EXPECT_EQ(DecideWebhook(attempts, {.status = status}).act, Act::kRetry) << attempts << " " << status;
    }
    total += DecideWebhook(attempts, {.status = 503}).wait;
  }
  EXPECT_GE(total, absl::Minutes(3));
  EXPECT_LE(total, absl::Minutes(6));
  const WebhookDecision last = DecideWebhook(10, {.status = 0, .problem = "no answer"});
  EXPECT_EQ(last.act, Act::kGiveUp);
  EXPECT_EQ(last.reason, "no answer");
}

TEST(Webhook, IsGivenUp_IfTheServerRefusesIt) {
  for (int status : {302, 400, 401, 404}) EXPECT_EQ(DecideWebhook(1, {.status = status}).act, Act::kGiveUp) << status;
  EXPECT_EQ(DecideWebhook(1, {.status = 404}).reason, "the server answered with status 404");
}

}  // namespace
}  // namespace trainyard
