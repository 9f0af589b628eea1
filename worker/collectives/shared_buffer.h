// Memory of one process that the other ranks of its host can map and read. Its content is gathered and summed in place,
// without a copy into a segment (shared_segment.h). It has no name in a file system.
//
// Thread-safe after construction.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace trainyard {

class SharedBuffer {
 public:
  // Zero-filled. Possible errors: ResourceExhausted and other system errors.
  static absl::StatusOr<std::shared_ptr<SharedBuffer>> Make(size_t bytes);
  // Maps another process's buffer for reading. Possible errors: Unavailable if that process has exited.
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
