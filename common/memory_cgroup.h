// The memory cgroup (version 1 or 2) of a process: its folder, its limit, and the memory that its processes may still
// allocate. Containers and batch systems limit memory through cgroups, which the memory statistics of the host do not
// show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// Returns the folder of the cgroup, or "" if the folder cannot be found. `process` is a number or "self". Tests replace
// `proc`.
std::string MemoryCgroupOf(absl::string_view process, const std::string& proc = "/proc");

// The limit of the cgroup itself, in bytes; its ancestors may have lower limits. 0 if it has none.
uint64_t MemoryLimitOf(const std::string& cgroup);

// The bytes that may still be allocated within the limits of `cgroup` and its ancestors. Inactive file pages count as
// free, because the kernel reclaims them first. None if there is no limit.
std::optional<int64_t> MemoryLeftIn(const std::string& cgroup);

// The number after `name` in lines of "name number". -1 if there is none.
int64_t FindCount(absl::string_view text, absl::string_view name);
// FindCount in the file at `path`. -1 also if it cannot be read.
int64_t ReadCount(const std::string& path, absl::string_view name);

}  // namespace trainyard
