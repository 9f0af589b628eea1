#include "worker/agent/memory_kills.h"

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/memory_cgroup.h"

namespace trainyard::agent {
namespace {

// A counter that was first read after the kill includes it already, so it is not raised above the latest value.
void RaiseByOne(int64_t latest, int64_t& count) {
  if (count >= 0 && count < latest) ++count;
}

}  // namespace

MemoryKills CountMemoryKills(pid_t pid, const std::string& proc) {
  MemoryKills kills;
  kills.cgroup = MemoryCgroupOf(absl::StrCat(pid), proc);
  return RecountMemoryKills(kills, proc);
}

MemoryKills RecountMemoryKills(const MemoryKills& before, const std::string& proc) {
  MemoryKills kills;
  kills.cgroup = before.cgroup;
  kills.on_host = ReadCount(JoinPath(proc, "vmstat"), "oom_kill");
  if (kills.cgroup.empty()) return kills;
  kills.in_cgroup = ReadCount(JoinPath(kills.cgroup, "memory.events"), "oom_kill");
  if (kills.in_cgroup < 0) {
    kills.in_cgroup = ReadCount(JoinPath(kills.cgroup, "memory.oom_control"), "oom_kill");
  }
  kills.limit_bytes = MemoryLimitOf(kills.cgroup);
  return kills;
}

std::string FormatMemoryKill(const MemoryKills& before, const MemoryKills& after) {
  if (before.in_cgroup >= 0 && after.in_cgroup > before.in_cgroup) {
    std::string limit =
        after.limit_bytes > 0 ? absl::StrCat(", limit ", after.limit_bytes >> 20, " MiB") : std::string();
    return absl::StrCat("out of memory: the kernel killed it (cgroup ", after.cgroup, limit, ": oom_kill ",
                        before.in_cgroup, " to ", after.in_cgroup, ")");
  }
  // If the cgroup's counter is known and unchanged, the kernel did not kill this process for lack of memory.
  if (before.in_cgroup >= 0 && after.in_cgroup >= 0) return "";
  if (before.on_host >= 0 && after.on_host > before.on_host) {
    return absl::StrCat("probably out of memory: the kernel killed processes on this host meanwhile (oom_kill ",
                        before.on_host, " to ", after.on_host, ")");
  }
  return "";
}

void DiscountMemoryKill(const MemoryKills& latest, MemoryKills& other) {
  RaiseByOne(latest.on_host, other.on_host);
  if (other.cgroup == latest.cgroup) RaiseByOne(latest.in_cgroup, other.in_cgroup);
}

}  // namespace trainyard::agent
