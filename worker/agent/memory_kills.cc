#include "worker/agent/memory_kills.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"

namespace trainyard::agent {
namespace {

constexpr size_t kFileBytes = 1 << 20;
// A limit above this is none: cgroup v1 says "no limit" with the largest number of pages there is.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::string ReadOrEmpty(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kFileBytes);
  return text.ok() ? *std::move(text) : "";
}

// Where a controller's hierarchy is mounted, and which part of it.
struct Mount {
  std::string root;
  std::string point;
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

// The folder of the cgroup that a process is in, by the text of /proc/<pid>/cgroup. Of the two versions the first that
// has the memory controller.
std::string FindCgroup(absl::string_view cgroups, absl::string_view mountinfo) {
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
    // Where both are mounted, memory is with the old one.
    if (!version_2) return folder;
    found = folder;
  }
  return found;
}

uint64_t ReadLimit(const std::string& cgroup) {
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    std::string text = ReadOrEmpty(JoinPath(cgroup, name));
    uint64_t bytes = 0;
    if (absl::SimpleAtoi(absl::StripSuffix(text, "\n"), &bytes)) return bytes < kNoLimit ? bytes : 0;
  }
  return 0;
}

}  // namespace

int64_t FindCount(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = -1;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") && absl::SimpleAtoi(line, &count)) {
      return count;
    }
  }
  return -1;
}

MemoryKills CountMemoryKills(pid_t pid, const std::string& proc) {
  MemoryKills kills;
  kills.cgroup = FindCgroup(ReadOrEmpty(absl::StrCat(proc, "/", pid, "/cgroup")),
                            ReadOrEmpty(absl::StrCat(proc, "/self/mountinfo")));
  return CountAgain(kills, proc);
}

MemoryKills CountAgain(const MemoryKills& before, const std::string& proc) {
  MemoryKills kills;
  kills.cgroup = before.cgroup;
  kills.on_host = FindCount(ReadOrEmpty(JoinPath(proc, "vmstat")), "oom_kill");
  if (kills.cgroup.empty()) return kills;
  kills.in_cgroup = FindCount(ReadOrEmpty(JoinPath(kills.cgroup, "memory.events")), "oom_kill");
  if (kills.in_cgroup < 0) {
    kills.in_cgroup = FindCount(ReadOrEmpty(JoinPath(kills.cgroup, "memory.oom_control")), "oom_kill");
  }
  kills.limit_bytes = ReadLimit(kills.cgroup);
  return kills;
}

std::string TellMemoryKill(const MemoryKills& before, const MemoryKills& after) {
  if (before.in_cgroup >= 0 && after.in_cgroup > before.in_cgroup) {
    std::string limit =
        after.limit_bytes > 0 ? absl::StrCat(", limit ", after.limit_bytes >> 20, " MiB") : std::string();
    return absl::StrCat("out of memory: the kernel killed it (cgroup ", after.cgroup, limit, ": oom_kill ",
                        before.in_cgroup, " to ", after.in_cgroup, ")");
  }
  // Where the cgroup counts, a kill elsewhere on the host is none of this process.
  if (before.in_cgroup >= 0 && after.in_cgroup >= 0) return "";
  if (before.on_host >= 0 && after.on_host > before.on_host) {
    return absl::StrCat("probably out of memory: the kernel killed processes of this host meanwhile (oom_kill ",
                        before.on_host, " to ", after.on_host, ")");
  }
  return "";
}

}  // namespace trainyard::agent
