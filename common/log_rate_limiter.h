// Lets one log line through in each period and counts the others, so that requests of an unauthenticated sender cannot
// fill a log. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard {

class LogRateLimiter {
 public:
  explicit LogRateLimiter(absl::Duration period) : period_(period) {}

  // If a line may be written at `now`, returns the number of lines that were suppressed since the last written line;
  // else none.
  absl::optional<uint64_t> Allow(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (now < next_) {
      ++suppressed_;
      return absl::nullopt;
    }
    next_ = now + period_;
    const uint64_t suppressed = suppressed_;
    suppressed_ = 0;
    return suppressed;
  }

 private:
  const absl::Duration period_;
  absl::Mutex mu_;
  absl::Time next_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint64_t suppressed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard
