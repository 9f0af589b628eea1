// Memory of one process that the other ranks of its host can map and read: what lies in it is gathered and summed from
// where it lies, without a copy into a segment (shared_segment.h). It has no name in a file system.
//
// Thread-safe once made.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace trainyard {

class SharedBuffer {
 public:
  // Zeros. Possible errors: ResourceExhausted and others of the system.
  static absl::StatusOr<std::shared_ptr<SharedBuffer>> Make(size_t bytes);
  // That of another process, to be read. Possible errors: Unavailable when it is gone.
  static absl::StatusOr<std::shared_ptr<SharedBuffer>> Open(int pid, int fd, size_t bytes);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedBuffer(int fd, size_t bytes) : fd_(fd), bytes_(bytes) {}
  absl::Status Map(int protection);

  int fd_;
  const size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace trainyard
