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

// The folders of this process in a cgroup hierarchy, from its own to the one that is mounted: the limits of all of them
// apply. An empty `controller` means version 2.
std::vector<std::string> CgroupFolders(absl::string_view controller, const std::string& root) {
  absl::StatusOr<std::string> groups = ReadFile(absl::StrCat(root, "/proc/self/cgroup"), kSmallFileBytes);
  if (!groups.ok()) return {};
  for (absl::string_view line : absl::StrSplit(*groups, '\n')) {
    std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", controller.empty() ? "" : "/", controller);
    std::string folder = absl::StrCat(mount, parts[2] == "/" ? "" : parts[2]);
    // A container without a cgroup namespace reads the path on its host, but only its own folder is mounted.
    if (!FileExists(folder)) folder = mount;
    std::vector<std::string> folders;
    for (; folder.size() > mount.size(); folder.resize(folder.rfind('/'))) folders.push_back(folder);
    folders.push_back(mount);
    return folders;
  }
  return {};
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

double CgroupCores(const std::string& root) {
  double cores = INFINITY;
  for (const std::string& folder : CgroupFolders("", root)) {
    const std::vector<std::string> max = ReadWords(absl::StrCat(folder, "/cpu.max"));  // "max 100000", "150000 100000"
    if (max.size() == 2 && max[0] != "max") cores = std::min(cores, NumberOr(max, 0, INFINITY) / NumberOr(max, 1, 1));
  }
  for (const char* controller : {"cpu", "cpuacct"}) {
    for (const std::string& folder : CgroupFolders(controller, root)) {
      const double quota = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_quota_us")), 0, -1);
      const double period = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_period_us")), 0, 0);
      if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
    }
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
  for (const std::string& folder : CgroupFolders("", "")) {
    bytes = std::min(bytes, NumberOr(ReadWords(absl::StrCat(folder, "/memory.max")), 0, INFINITY));
  }
  for (const std::string& folder : CgroupFolders("memory", "")) {
    bytes = std::min(bytes, NumberOr(ReadWords(absl::StrCat(folder, "/memory.limit_in_bytes")), 0, INFINITY));
  }
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
