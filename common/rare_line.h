// Lets one log line through in each period and counts the others, so that requests of a stranger cannot fill a log.
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard {

class RareLine {
 public:
  explicit RareLine(absl::Duration period) : period_(period) {}

  // If a line may be written `now`, the number of lines that were left out since the last one; otherwise none.
  absl::optional<uint64_t> Take(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (now < next_) {
      ++left_out_;
      return absl::nullopt;
    }
    next_ = now + period_;
    const uint64_t left_out = left_out_;
    left_out_ = 0;
    return left_out;
  }

 private:
  const absl::Duration period_;
  absl::Mutex mu_;
  absl::Time next_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard
