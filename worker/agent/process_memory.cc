#include "worker/agent/process_memory.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/process_stat.h"

namespace trainyard::agent {
namespace {

constexpr size_t kProcTextBytes = 16 << 10;

}  // namespace

std::optional<ProcessMemory> ParseProcessMemory(pid_t pid, absl::string_view text) {
  const std::vector<absl::string_view> fields = StatFields(text, kStatResidentPages);
  ProcessMemory memory{.pid = pid};
  if (fields.empty() || !absl::SimpleAtoi(fields[kStatParent], &memory.parent) ||
      !absl::SimpleAtoi(fields[kStatResidentPages], &memory.resident_pages)) {
    return std::nullopt;
  }
  return memory;
}

std::optional<uint64_t> ParseProportionalBytes(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "Pss:")) continue;
    uint64_t kib = 0;
    line = absl::StripAsciiWhitespace(line);
    if (absl::ConsumeSuffix(&line, " kB") && absl::SimpleAtoi(line, &kib)) return kib << 10;
  }
  return std::nullopt;
}

std::vector<ProcessMemory> ListProcessMemory() {
  std::vector<ProcessMemory> processes;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return processes;
  const absl::Cleanup close = [proc] { closedir(proc); };
  while (const struct dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/stat"), kProcTextBytes);
    if (!text.ok()) continue;  // it has exited
    if (const std::optional<ProcessMemory> memory = ParseProcessMemory(pid, *text)) processes.push_back(*memory);
  }
  return processes;
}

std::vector<ProcessMemory> ProcessesOfRank(absl::Span<const ProcessMemory> processes, pid_t rank) {
  const auto own = std::find_if(processes.begin(), processes.end(),
                                [rank](const ProcessMemory& process) { return process.pid == rank; });
  if (own == processes.end()) return {};
  // Pids do not grow from parents to children once they have wrapped around, so this repeats until nothing is added.
  std::set<pid_t> members = {own->parent};
  for (size_t known = 0; known != members.size();) {
    known = members.size();
    for (const ProcessMemory& process : processes) {
      if (members.count(process.parent) > 0) members.insert(process.pid);
    }
  }
  std::vector<ProcessMemory> found;
  for (const ProcessMemory& process : processes) {
    if (process.pid != own->parent && members.count(process.pid) > 0) found.push_back(process);
  }
  return found;
}

uint64_t MemoryOfRank(absl::Span<const ProcessMemory> processes, pid_t rank, uint64_t limit) {
  const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::vector<ProcessMemory> members = ProcessesOfRank(processes, rank);
  uint64_t resident = 0;
  for (const ProcessMemory& process : members) resident += process.resident_pages * page_bytes;
  if (resident <= limit) return resident;
  uint64_t proportional = 0;
  for (const ProcessMemory& process : members) {
    const absl::StatusOr<std::string> text =
        ReadFile(absl::StrCat("/proc/", process.pid, "/smaps_rollup"), kProcTextBytes);
    const std::optional<uint64_t> bytes = text.ok() ? ParseProportionalBytes(*text) : std::nullopt;
    proportional += bytes.value_or(process.resident_pages * page_bytes);
  }
  return std::min(proportional, resident);
}

}  // namespace trainyard::agent
