// How far something that goes through many bytes has got: a bar at the bottom of a terminal, nothing elsewhere. Add is
// thread-safe; the bar is drawn by whoever adds, ten times a second at most, and goes away with the object.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/terminal.h"

namespace trainyard::client {

// "verify [########............] 40%  1.2 GiB of 3.0 GiB  850.0 MiB/s"; less of it where that is wider than `columns`
// (0: any number). Pure.
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
  Terminal terminal_;  // this and the rest are guarded by mutex_
  uint64_t done_ = 0;
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace trainyard::client
