// Writes lines to a descriptor from a thread of its own, so that a reader that does not read (a pager, a stopped
// terminal, a stuck log collector) blocks no other thread. Lines wait in a queue of limited size. Lines that do not fit
// are dropped and counted, and once there is space a line with the count is written in their place.
//
//   LogWriter writer({.fd = STDERR_FILENO, .format_dropped = [](uint64_t lines) { return "... dropped\n"; }});
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
#include "common/steady_cond_var.h"

namespace trainyard {

class LogWriter {
 public:
  struct Options {
    int fd = -1;  // not owned
    // If set, receives each line instead of `fd`; returns false if the line is lost. Called on the writer's thread.
    std::function<bool(const std::string& line)> write = nullptr;
    size_t queue_bytes = limits::kLogQueueBytes;
    // Formats the line that replaces this many dropped lines. Called on the writer's thread.
    std::function<std::string(uint64_t)> format_dropped;
  };

  explicit LogWriter(Options options);
  // Waits until the descriptor has accepted or refused all queued lines. A program whose reader may be stuck calls
  // Flush instead and does not destroy the object.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void Push(std::string line);

  // Waits until all lines pushed so far, and the counts of dropped ones, have been written or refused. Returns false if
  // that takes longer than `limit`.
  bool Flush(absl::Duration limit);

  // The number of lines that were lost: dropped here, or refused by the descriptor.
  uint64_t dropped() const { return dropped_; }

  // Whether no line or count waits to be written. Acquires no lock, so signal handlers can call it.
  bool idle() const { return idle_; }

 private:
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !lines_.empty() || missing_ > 0; }
  bool Write(const std::string& text) const;

  const Options options_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> idle_{true};

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;      // of lines_
  uint64_t missing_ ABSL_GUARDED_BY(mu_) = 0;  // dropped after the last of lines_
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
