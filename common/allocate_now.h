// Space for files in memory.
#pragma once

#include <errno.h>
#include <fcntl.h>

#include <cstdint>

namespace trainyard {

// Allocates the space of the file `fd` in advance: where it is mapped, running out of memory later would raise SIGBUS.
// Returns an error number, or 0.
inline int AllocateNow(int fd, uint64_t bytes) {
  int error;
  // A signal, such as the daemon's request for a stack, interrupts this call despite SA_RESTART.
  do error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

}  // namespace trainyard
