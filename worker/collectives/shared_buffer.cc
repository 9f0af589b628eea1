#include "worker/collectives/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/allocate_now.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::shared_ptr<SharedBuffer>> SharedBuffer::Make(size_t bytes) {
  const int fd = memfd_create("trainyard-buffer", MFD_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "cannot create shared memory");
  std::shared_ptr<SharedBuffer> buffer(new SharedBuffer(fd, bytes));
  const int error = AllocateNow(fd, bytes);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot allocate ", bytes, " bytes of shared memory"));
  RETURN_IF_ERROR(buffer->Map(PROT_READ | PROT_WRITE));
  return buffer;
}

absl::StatusOr<std::shared_ptr<SharedBuffer>> SharedBuffer::Open(int pid, int fd, size_t bytes) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  const int own = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (own < 0) return absl::UnavailableError(absl::StrCat("cannot open the memory of a peer, ", path));
  std::shared_ptr<SharedBuffer> buffer(new SharedBuffer(own, bytes));
  struct stat status;
  if (fstat(own, &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    return absl::UnavailableError(absl::StrCat(path, " does not have the ", bytes, " bytes that a peer published"));
  }
  RETURN_IF_ERROR(buffer->Map(PROT_READ));
  // The mapping is sufficient, and file descriptors are limited.
  close(buffer->fd_);
  buffer->fd_ = -1;
  return buffer;
}

absl::Status SharedBuffer::Map(int protection) {
  void* address = mmap(nullptr, bytes_, protection, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("cannot map ", bytes_, " bytes"));
  data_ = static_cast<std::byte*>(address);
  return absl::OkStatus();
}

SharedBuffer::~SharedBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace trainyard
