// The memory of the processes of a rank, for command.memory_bytes: the rank's own process and all that it has started.
// These are the descendants of its shim, which also becomes the parent of orphans. Reads /proc; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard::agent {

struct ProcessMemory {
  pid_t pid = 0;
  pid_t parent = 0;
  uint64_t resident_pages = 0;
};

// From the text of /proc/<pid>/stat; nullopt: the text is not as expected.
std::optional<ProcessMemory> ParseProcessMemory(pid_t pid, absl::string_view text);
// The line "Pss:" in the text of /proc/<pid>/smaps_rollup, in bytes; nullopt: there is none.
std::optional<uint64_t> ParseProportionalBytes(absl::string_view text);

// All processes of this host. Takes about 10 microseconds for each.
std::vector<ProcessMemory> ListProcessMemory();

// The rank's own process, whose parent is the shim, and the other descendants of the shim. Pure.
std::vector<ProcessMemory> ProcessesOfRank(absl::Span<const ProcessMemory> processes, pid_t rank);

// The memory of a rank in bytes. The sum of resident pages counts shared pages once for each process, so it is only an
// upper bound: if it exceeds `limit`, the proportional sizes are summed instead, which takes the kernel longer.
uint64_t MemoryOfRank(absl::Span<const ProcessMemory> processes, pid_t rank, uint64_t limit);

}  // namespace trainyard::agent
