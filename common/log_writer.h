// Writes lines to a descriptor from a thread of its own, so that a reader who does not read (a pager, a stopped
// terminal, a stuck collector) holds up nobody else: lines wait in a queue of bounded size, what does not fit is
// dropped and counted, and the count is written in the place of what is missing once there is room again.
//
//   LogWriter writer({.fd = STDERR_FILENO, .tell_dropped = [](uint64_t lines) { return "... dropped\n"; }});
//   writer.Push("a line\n");
//   writer.Flush(absl::Seconds(1));
//
// Thread-safe. Push never waits for the descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/limits.h"

namespace trainyard {

class LogWriter {
 public:
  struct Options {
    int fd = -1;  // not owned
    size_t queue_bytes = limits::kLogQueueBytes;
    // The line that stands for so many that were dropped. Called on the writer's thread.
    std::function<std::string(uint64_t)> tell_dropped;
  };

  explicit LogWriter(Options options);
  // Waits until the descriptor has taken what is queued or refuses it. A program whose reader may be stuck calls Flush
  // instead and leaves the object to the end of the process.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void Push(std::string line);

  // Waits until everything pushed so far has been written or refused; false: not within `limit`.
  bool Flush(absl::Duration limit);

  // Lines that nobody will read: dropped here, or refused by the descriptor.
  uint64_t dropped() const { return dropped_; }

  // Whether everything has been written. Takes no lock: for signal handlers.
  bool idle() const { return idle_; }

 private:
  void Loop();
  bool Write(const std::string& text) const;

  const Options options_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> idle_{true};

  mutable absl::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;      // of lines_
  uint64_t missing_ ABSL_GUARDED_BY(mu_) = 0;  // dropped after the last of lines_
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
