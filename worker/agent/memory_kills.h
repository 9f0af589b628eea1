// Detects whether the kernel killed a process for lack of memory. The kernel reports that by counters only: one per
// cgroup, and one for the whole host. The counters are read when a trainer is first seen and again when it has ended by
// SIGKILL. Supports both versions of cgroups.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace trainyard::agent {

struct MemoryKills {
  std::string cgroup;        // folder of the process's memory cgroup; empty: not found
  int64_t in_cgroup = -1;    // processes killed there so far; -1: unknown
  int64_t on_host = -1;      // the same for the whole host
  uint64_t limit_bytes = 0;  // of the cgroup; 0: none
};

// `proc` is a proc file system, for tests.
MemoryKills CountMemoryKills(pid_t pid, const std::string& proc = "/proc");
// Reads the same counters again, also after the process has exited.
MemoryKills RecountMemoryKills(const MemoryKills& before, const std::string& proc = "/proc");

// Describes what the counters show about a process that was killed between the two readings; empty: nothing.
std::string FormatMemoryKill(const MemoryKills& before, const MemoryKills& after);

// After a kill was found to be the end of one process, with the counters at `latest`: counts this kill as known in the
// first reading of another process, so that it does not explain the end of that process, too.
void DiscountMemoryKill(const MemoryKills& latest, MemoryKills& other);

}  // namespace trainyard::agent
