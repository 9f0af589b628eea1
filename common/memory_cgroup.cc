#include "common/memory_cgroup.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
// Values from here on mean that there is no limit: cgroup v1 then reports the largest number of pages, in bytes.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::string ReadOrEmpty(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kFileBytesMax);
  return text.ok() ? *std::move(text) : "";
}

// A mount of the cgroup hierarchy of a controller.
struct Mount {
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where it is mounted
};

// A line of /proc/self/mountinfo: "36 35 98:0 <root> <point> rw,noatime ... - cgroup2 cgroup2 rw".
Mount FindMount(absl::string_view mountinfo, bool version_2) {
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    std::vector<absl::string_view> left = absl::StrSplit(halves[0], ' ');
    std::vector<absl::string_view> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    bool found = version_2 ? right[0] == "cgroup2" : right[0] == "cgroup" && absl::StrContains(right[2], "memory");
    if (found) return {std::string(left[3]), std::string(left[4])};
  }
  return {};
}

// Reads the files `names` of a cgroup in order, and returns the first number. None if no file contains a number; a file
// without a limit contains "max".
std::optional<uint64_t> ReadNumber(const std::string& cgroup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string text = ReadOrEmpty(JoinPath(cgroup, name));
    uint64_t number = 0;
    if (absl::SimpleAtoi(absl::StripSuffix(text, "\n"), &number)) return number;
  }
  return std::nullopt;
}

}  // namespace

std::string MemoryCgroupOf(absl::string_view process, const std::string& proc) {
  const std::string cgroups = ReadOrEmpty(absl::StrCat(proc, "/", process, "/cgroup"));
  const std::string mountinfo = ReadOrEmpty(absl::StrCat(proc, "/self/mountinfo"));
  std::string found;
  for (absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    bool version_2 = fields[1].empty();
    if (!version_2 && !absl::StrContains(absl::StrCat(",", fields[1], ","), ",memory,")) continue;
    Mount mount = FindMount(mountinfo, version_2);
    if (mount.point.empty()) continue;
    absl::string_view path = fields[2];
    if (mount.root != "/") absl::ConsumePrefix(&path, mount.root);
    path = absl::StripSuffix(path, "/");
    std::string folder = absl::StrCat(mount.point, path);
    // If both versions are mounted, the memory controller belongs to version 1.
    if (!version_2) return folder;
    found = folder;
  }
  return found;
}

uint64_t MemoryLimitOf(const std::string& cgroup) {
  const uint64_t bytes = ReadNumber(cgroup, {"memory.max", "memory.limit_in_bytes"}).value_or(0);
  return bytes < kNoLimit ? bytes : 0;
}

std::optional<int64_t> MemoryLeftIn(const std::string& cgroup) {
  std::optional<int64_t> min_left;
  for (std::string folder = cgroup; !folder.empty(); folder.resize(folder.rfind('/'))) {
    const std::optional<uint64_t> used = ReadNumber(folder, {"memory.current", "memory.usage_in_bytes"});
    const uint64_t limit = MemoryLimitOf(folder);
    if (used.has_value() && limit > 0) {
      const std::string stat = ReadOrEmpty(JoinPath(folder, "memory.stat"));
      const int64_t files_of_subtree = FindCount(stat, "total_inactive_file");  // version 1
      const int64_t files =
          std::max<int64_t>(files_of_subtree >= 0 ? files_of_subtree : FindCount(stat, "inactive_file"), 0);
      const int64_t left = std::max<int64_t>(static_cast<int64_t>(limit) - static_cast<int64_t>(*used) + files, 0);
      min_left = std::min(min_left.value_or(left), left);
    }
    if (folder.rfind('/') == std::string::npos) break;
  }
  return min_left;
}

int64_t FindCount(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = -1;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") && absl::SimpleAtoi(line, &count)) {
      return count;
    }
  }
  return -1;
}

int64_t ReadCount(const std::string& path, absl::string_view name) { return FindCount(ReadOrEmpty(path), name); }

}  // namespace trainyard
