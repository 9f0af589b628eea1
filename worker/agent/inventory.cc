#include "worker/agent/inventory.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "common/version.h"

namespace trainyard::agent {
namespace {

constexpr uint64_t kSmallFileBytes = 64 << 10;

// The folder of this process in a cgroup hierarchy; an empty `controller` means version 2.
std::string CgroupFolder(absl::string_view controller) {
  absl::StatusOr<std::string> groups = ReadFile("/proc/self/cgroup", kSmallFileBytes);
  if (!groups.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*groups, '\n')) {
    std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    return absl::StrCat("/sys/fs/cgroup", controller.empty() ? "" : "/", controller, parts[2] == "/" ? "" : parts[2]);
  }
  return "";
}

// The words of a small file; none if it cannot be read.
std::vector<std::string> ReadWords(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kSmallFileBytes);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
}

double NumberOr(const std::vector<std::string>& words, size_t index, double fallback) {
  double number;
  return index < words.size() && absl::SimpleAtod(words[index], &number) ? number : fallback;
}

}  // namespace

double CgroupCores() {
  double cores = INFINITY;
  std::vector<std::string> max =
      ReadWords(absl::StrCat(CgroupFolder(""), "/cpu.max"));  // "max 100000" or "150000 100000"
  if (max.size() == 2 && max[0] != "max") cores = NumberOr(max, 0, INFINITY) / NumberOr(max, 1, 1);
  for (const char* controller : {"cpu", "cpuacct"}) {
    std::string folder = CgroupFolder(controller);
    double quota = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_quota_us")), 0, -1);
    double period = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_period_us")), 0, 0);
    if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
  }
  return cores;
}

uint32_t CoresOfAffinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool is_known = sched_getaffinity(0, sizeof set, &set) == 0;
  return static_cast<uint32_t>(is_known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN));
}

std::vector<uint32_t> CpusOfAffinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<uint32_t> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

uint32_t UsableCores() {
  return static_cast<uint32_t>(std::max(1.0, std::ceil(std::min<double>(CoresOfAffinity(), CgroupCores()))));
}

uint64_t UsableMemoryBytes() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  bytes = std::min(bytes, NumberOr(ReadWords(absl::StrCat(CgroupFolder(""), "/memory.max")), 0, INFINITY));
  bytes =
      std::min(bytes, NumberOr(ReadWords(absl::StrCat(CgroupFolder("memory"), "/memory.limit_in_bytes")), 0, INFINITY));
  return static_cast<uint64_t>(bytes);
}

std::string ThisHost() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

uint64_t DiskFreeBytes(const std::string& path) {
  struct statvfs disk;
  if (statvfs(path.c_str(), &disk) != 0) return 0;
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

v1::Inventory ReadInventory(const std::string& coordinator) {
  v1::Inventory inventory;
  inventory.set_cores(UsableCores());
  inventory.set_memory_bytes(UsableMemoryBytes());
  utsname name;
  if (uname(&name) == 0) inventory.set_kernel(ValidUtf8(absl::StrCat(name.sysname, " ", name.release), 256));
  inventory.set_version(kVersion);
  inventory.set_torch_version(kTorchVersion);
  inventory.set_data_address(DataAddress(coordinator));
  AddGpus(&inventory);
  return inventory;
}

}  // namespace trainyard::agent
