#include "client/retry.h"

#include <algorithm>

#include "absl/strings/numbers.h"

namespace trainyard::client {

absl::optional<absl::Duration> Retry::Failed(absl::Time now) {
  if (!is_unanswered()) unanswered_since_ = now;
  const absl::Duration left = options_.give_up_after - (now - unanswered_since_);
  if (left <= absl::ZeroDuration()) return absl::nullopt;
  return std::min(NextBackoff(), left);
}

absl::Duration Retry::NextBackoff() {
  const absl::Duration wait = backoff_;
  backoff_ = std::min(backoff_ * 2, options_.backoff_max);
  return wait;
}

void Retry::Answered() {
  backoff_ = options_.backoff_min;
  unanswered_since_ = absl::InfiniteFuture();
}

absl::optional<absl::Duration> ParseReconnectDuration(absl::string_view text) {
  if (text == "forever") return absl::InfiniteDuration();
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::nullopt;
  }
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) return absl::nullopt;
  return duration;
}

}  // namespace trainyard::client
