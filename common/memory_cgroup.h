// The memory cgroup of a process, of either version: where its folder is, and what it leaves its processes. Containers
// and batch systems limit by it what the host's own numbers do not show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// `process` is a number or "self"; `proc` is a proc file system, for tests. Empty: not to be found.
std::string MemoryCgroupOf(absl::string_view process, const std::string& proc = "/proc");

// 0: none.
uint64_t MemoryLimitOf(const std::string& cgroup);

// What may still be taken within the limits of `cgroup` and of those above it: file pages that were not used lately are
// given up first, and count as free. Unset: nothing limits it.
std::optional<int64_t> MemoryLeftIn(const std::string& cgroup);

// The number after `name` in lines of "name number"; -1: there is none.
int64_t FindCount(absl::string_view text, absl::string_view name);
// That of the file at `path`; -1 also where it cannot be read.
int64_t ReadCount(const std::string& path, absl::string_view name);

}  // namespace trainyard
