// A progress bar for work measured in bytes: drawn at the bottom of a terminal, not shown elsewhere. Add is
// thread-safe; the calling thread draws the bar, at most ten times a second, and the destructor removes it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/terminal.h"

namespace trainyard::client {

// "verify [########............] 40%  1.2 GiB of 3.0 GiB  850.0 MiB/s"; shortened if that is wider than `columns` (0:
// no limit). Pure.
std::string ByteBar(absl::string_view label, uint64_t done, uint64_t total, absl::Duration elapsed, int columns = 0);

class ByteProgress {
 public:
  ByteProgress(FILE* stream, std::string label, uint64_t total);
  void Add(uint64_t bytes);

 private:
  const std::string label_;
  const uint64_t total_;
  const absl::Time began_;
  std::mutex mutex_;
  Terminal terminal_;  // mutex_ guards this and the fields below
  uint64_t done_ = 0;
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace trainyard::client
