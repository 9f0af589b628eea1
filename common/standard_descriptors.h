// Opens descriptors 0 to 2 of a program that was started with some of them closed. Otherwise the first files that it
// opens would get these numbers: a daemon whose lock file became descriptor 2 wrote its log into that file.
//
//   #include "common/standard_descriptors.h"   in the file with a program's main, and nowhere else
//
// Including the header is enough. Its function runs before all other code of the process, including constructors of
// shared libraries that open files, as one of gRPC's does. Calls only the kernel, so that the shim can use it.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trainyard {

// Opens /dev/null as each of 0, 1 and 2 that is closed. REQUIRES: there is no second thread.
inline void OpenStandardDescriptors() {
  long fd;
  do {
    fd = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);  // gets the lowest free number
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) syscall(SYS_close, fd);
}

namespace {

// The dynamic loader calls the functions in this section before the constructors of shared libraries.
__attribute__((section(".preinit_array"), used)) void (*open_standard_descriptors)() = &OpenStandardDescriptors;

}  // namespace
}  // namespace trainyard
