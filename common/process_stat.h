// Parses /proc/<pid>/stat, as described in proc(5). Thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard {

// Indices into StatFields; proc(5) numbers these fields from 3.
inline constexpr size_t kStatState = 0;
inline constexpr size_t kStatParent = 1;
inline constexpr size_t kStatUserTicks = 11;
inline constexpr size_t kStatSystemTicks = 12;
inline constexpr size_t kStatThreads = 17;
inline constexpr size_t kStatStartTicks = 19;
inline constexpr size_t kStatVirtualBytes = 20;
inline constexpr size_t kStatResidentPages = 21;

// Returns the fields that follow the name of the program. Empty: there is no field with the index `last`.
std::vector<absl::string_view> StatFields(absl::string_view text, size_t last);

}  // namespace trainyard
