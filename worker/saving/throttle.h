// A token bucket: a number of bytes per second, with bursts of at most a quarter of a second's worth. Pure; the caller
// reads the clock and waits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace trainyard {

class Throttle {
 public:
  // 0: no limit.
  explicit Throttle(uint64_t bytes_per_s) : bytes_per_s_(static_cast<double>(bytes_per_s)) {}

  // Removes this many bytes from the bucket and returns how long to wait before writing them. `now`: of a steady clock.
  absl::Duration Consume(absl::Time now, uint64_t bytes) {
    if (bytes_per_s_ <= 0) return absl::ZeroDuration();
    const double burst = bytes_per_s_ / 4;
    if (last_ == absl::InfinitePast()) {
      tokens_ = burst;
    } else {
      tokens_ = std::min(burst, tokens_ + absl::ToDoubleSeconds(now - last_) * bytes_per_s_);
    }
    last_ = now;
    tokens_ -= static_cast<double>(bytes);
    return tokens_ >= 0 ? absl::ZeroDuration() : absl::Seconds(-tokens_ / bytes_per_s_);
  }

 private:
  const double bytes_per_s_;
  double tokens_ = 0;  // in bytes; below 0: bytes that may be written only after a wait
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace trainyard
