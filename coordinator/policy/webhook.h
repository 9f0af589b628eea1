// Decides what follows an attempt to deliver a webhook: an HTTP POST that reports the end of a job. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace trainyard {

// What an attempt led to.
struct WebhookAnswer {
  int status = 0;            // of HTTP; 0: there was no answer
  std::string problem = {};  // why there was none
};

struct WebhookDecision {
  enum class Act { kDone, kRetry, kGiveUp };
  Act act = Act::kDone;
  absl::Duration wait = {};  // before the next attempt
  std::string reason = {};   // kRetry and kGiveUp: "the server answered with status 500"
};

// `attempts` includes the one that led to `answer`. A server that is overloaded or cannot be reached is asked again for
// four to five minutes; one that refuses the request is not.
WebhookDecision DecideWebhook(int attempts, const WebhookAnswer& answer);

}  // namespace trainyard
