// Decides when to retry a call to a coordinator that does not answer: after 50 ms, doubling up to 1 s, for as long as
// configured. Pure; the caller supplies the time.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard::client {

struct RetryOptions {
  absl::Duration backoff_min = absl::Milliseconds(50);
  absl::Duration backoff_max = absl::Seconds(1);
  // No call is retried when this time has passed since the first call that was not answered.
  absl::Duration give_up_after = absl::InfiniteDuration();
};

class Retry {
 public:
  explicit Retry(const RetryOptions& options) : options_(options), backoff_(options.backoff_min) {}

  // Returns whether the last call was not answered.
  bool is_unanswered() const { return unanswered_since_ != absl::InfiniteFuture(); }

  // Records that a call was not answered at `now`. Returns how long to wait before the next call; nullopt if no call
  // was answered for `give_up_after`.
  absl::optional<absl::Duration> Failed(absl::Time now);
  // Returns how long to wait before a call that must be repeated although the last one was answered (a stream that
  // ended early).
  absl::Duration NextBackoff();
  // Records that a call was answered.
  void Answered();

 private:
  const RetryOptions options_;
  absl::Duration backoff_;
  absl::Time unanswered_since_ = absl::InfiniteFuture();
};

// Parses "30s", "5m", "1h30m", "forever" or a number of seconds. nullopt: not a duration.
absl::optional<absl::Duration> ParseReconnectDuration(absl::string_view text);

}  // namespace trainyard::client
