// A progress bar for work measured in bytes: drawn at the bottom of a terminal, not shown elsewhere. Add is
// thread-safe; the calling thread draws the bar, at most ten times a second, and the destructor removes it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/terminal.h"

namespace trainyard::client {

// "verify [########............] 40%  1.2 GiB of 3.0 GiB  850.0 MiB/s"; shortened if that is wider than `columns` (0:
// no limit). Pure.
std::string ByteBar(absl::string_view label, uint64_t done, uint64_t total, absl::Duration elapsed, int columns = 0);

class ByteProgress {
 public:
  // `label` may contain text from outside, such as the name of a file.
  ByteProgress(FILE* stream, absl::string_view label, uint64_t total);
  void Add(uint64_t bytes);

 private:
  const std::string label_;
  const uint64_t total_;
  const absl::Time began_;
  absl::Mutex mu_;
  Terminal terminal_ ABSL_GUARDED_BY(mu_);
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_drawn_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace trainyard::client
