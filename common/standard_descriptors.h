// Descriptors 0 to 2 of a program whose starter closed them. What is opened first would otherwise take their numbers: a
// daemon whose lock file became descriptor 2 wrote its log into it.
//
//   #include "common/standard_descriptors.h"   in the file of a program's main, and nowhere else
//
// That is all: it happens before everything else in the process, also before libraries that the program is linked with
// open something at their start, as one of gRPC's does. Calls the kernel alone, so that the shim can use it.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trainyard {

// Opens /dev/null as each of 0, 1 and 2 that is closed. REQUIRES: there is no second thread.
inline void OpenStandardDescriptors() {
  long fd;
  do {
    fd = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);  // the lowest number that is free
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) syscall(SYS_close, fd);
}

namespace {

// What a program lists here is called before its libraries' own beginnings.
__attribute__((section(".preinit_array"), used)) void (*open_standard_descriptors)() = &OpenStandardDescriptors;

}  // namespace
}  // namespace trainyard
