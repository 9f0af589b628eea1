// When to call a coordinator again that does not answer: after 50 ms, doubling up to 1 s, for as long as the caller
// wants. Pure; its caller has the clock.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard::client {

struct RetryOptions {
  absl::Duration backoff_min = absl::Milliseconds(50);
  absl::Duration backoff_max = absl::Seconds(1);
  // Since the first call that was not answered.
  absl::Duration give_up = absl::InfiniteDuration();
};

class Retry {
 public:
  explicit Retry(const RetryOptions& options) : options_(options), backoff_(options.backoff_min) {}

  // Whether the coordinator is away: a call has failed and none has been answered since.
  bool away() const { return away_since_ != absl::InfiniteFuture(); }

  // A call was not answered at `now`. How long to wait before the next; none: it has been away for too long.
  absl::optional<absl::Duration> Failed(absl::Time now);
  // Nothing failed, but the call has to be made again (a stream that ended early).
  absl::Duration Again();
  // A call was answered.
  void Answered();

 private:
  const RetryOptions options_;
  absl::Duration backoff_;
  absl::Time away_since_ = absl::InfiniteFuture();
};

// "30s", "5m", "1h30m"; a bare number is seconds; "forever". None: it is no duration.
absl::optional<absl::Duration> ParsePatience(absl::string_view text);

}  // namespace trainyard::client
