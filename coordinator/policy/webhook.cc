#include "coordinator/policy/webhook.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr int kAttemptsMax = 10;
constexpr absl::Duration kWaitMax = absl::Seconds(60);

}  // namespace

WebhookDecision DecideWebhook(int attempts, const WebhookAnswer& answer) {
  if (answer.status >= 200 && answer.status < 300) return {};
  WebhookDecision decision{.act = WebhookDecision::Act::kRetry, .wait = absl::ZeroDuration(), .reason = answer.problem};
  if (answer.status != 0) decision.reason = absl::StrCat("the server answered with status ", answer.status);
  const bool is_temporary = answer.status == 0 || answer.status == 408 || answer.status == 429 || answer.status >= 500;
  if (!is_temporary || attempts >= kAttemptsMax) {
    decision.act = WebhookDecision::Act::kGiveUp;
    return decision;
  }
  decision.wait = std::min(absl::Seconds(int64_t{1} << std::clamp(attempts - 1, 0, 20)), kWaitMax);
  return decision;
}

}  // namespace trainyard
