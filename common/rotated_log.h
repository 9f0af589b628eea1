// The file that a daemon logs to. Lines are appended. Before FILE would exceed its limit, FILE becomes FILE.1, FILE.1
// becomes FILE.2 and so on, and the oldest file is removed. Another program may rename FILE (logrotate) and then
// request that FILE is opened again.
//
//   ASSIGN_OR_RETURN(auto file, RotatedLog::Open({.path = "/var/log/x.log", .max_bytes = 64 << 20, .max_files = 4}));
//   file->Write("a line\n");
//
// Write is called by one thread; RequestReopen by any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

class RotatedLog {
 public:
  struct Options {
    std::string path;
    uint64_t max_bytes = 0;  // 0: this class never renames the file
    uint32_t max_files = 1;  // the most renamed files that are kept
  };

  // Opens the file, or creates it with mode 0640 minus the umask. Possible errors: NotFound: its folder does not
  // exist. PermissionDenied. FailedPrecondition: it is not a regular file.
  static absl::StatusOr<std::unique_ptr<RotatedLog>> Open(Options options);
  ~RotatedLog();
  RotatedLog(const RotatedLog&) = delete;
  RotatedLog& operator=(const RotatedLog&) = delete;

  // Appends a line. Returns false if it could not be written completely. If the file cannot be renamed or opened again,
  // writes to the file that is still open.
  bool Write(const std::string& line);

  // Makes the next Write open the file by its path again.
  void RequestReopen() { reopen_ = true; }

 private:
  explicit RotatedLog(Options options) : options_(std::move(options)) {}
  absl::Status OpenPath();
  void Rotate();

  const Options options_;
  std::atomic<bool> reopen_{false};
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace trainyard
