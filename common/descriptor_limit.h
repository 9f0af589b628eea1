// The number of file descriptors that a process may have.
#pragma once

#include <sys/resource.h>

namespace trainyard {

// Raises the limit of this process to the hard limit, which is often far above a shell's default. Returns the limit, or
// 0 if it cannot be read. REQUIRES: the process does not use select, whose sets hold 1024 descriptors.
inline rlim_t RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace trainyard
