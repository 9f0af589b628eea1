#include "common/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "common/files.h"
#include "common/malloc_memory.h"
#include "common/process_stat.h"

namespace trainyard {
namespace {

constexpr MetricSpec kCpu = {"process_cpu_seconds_total", MetricKind::kCounter, "CPU time of the process."};
constexpr MetricSpec kStart = {"process_start_time_seconds", MetricKind::kGauge, "Start of the process, in Unix time."};
constexpr MetricSpec kResident = {"process_resident_memory_bytes", MetricKind::kGauge, "Memory that is in RAM."};
constexpr MetricSpec kAllocated = {"process_allocated_memory_bytes", MetricKind::kGauge,
                                   "Memory that the program has allocated and not freed."};
constexpr MetricSpec kVirtual = {"process_virtual_memory_bytes", MetricKind::kGauge, "Size of the address space."};
constexpr MetricSpec kThreads = {"process_threads", MetricKind::kGauge, "Threads of the process."};
constexpr MetricSpec kOpen = {"process_open_fds", MetricKind::kGauge, "Open file descriptors."};
constexpr MetricSpec kMax = {"process_max_fds", MetricKind::kGauge, "File descriptors that may be open."};

// The time at which the host was booted, in Unix time; none: it cannot be read.
absl::optional<double> BootSeconds() {
  absl::StatusOr<std::string> text = ReadFile("/proc/stat");
  if (!text.ok()) return absl::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &seconds)) return seconds;
  }
  return absl::nullopt;
}

absl::optional<double> OpenDescriptors() {
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return absl::nullopt;
  double count = -3;  // without ".", ".." and the descriptor of this folder
  while (readdir(folder.get()) != nullptr) ++count;
  return count;
}

void Add(const MetricSpec& spec, double value, std::vector<prometheus::MetricFamily>* families) {
  const bool counts = spec.kind == MetricKind::kCounter;
  prometheus::ClientMetric metric;
  (counts ? metric.counter.value : metric.gauge.value) = value;
  families->push_back(
      {spec.name, spec.help, counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge, {metric}});
}

void AddStat(std::vector<prometheus::MetricFamily>* families) {
  absl::StatusOr<std::string> text = ReadFile("/proc/self/stat");
  if (!text.ok()) return;
  const std::vector<absl::string_view> fields = StatFields(*text, kStatResidentPages);
  if (fields.empty()) return;
  auto number = [&fields](size_t index) {
    double value = 0;
    return absl::SimpleAtod(fields[index], &value) ? value : 0;
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Add(kCpu, (number(kStatUserTicks) + number(kStatSystemTicks)) / ticks, families);
  static const absl::optional<double> boot = BootSeconds();
  if (boot.has_value()) Add(kStart, *boot + number(kStatStartTicks) / ticks, families);
  Add(kResident, number(kStatResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE)), families);
  Add(kVirtual, number(kStatVirtualBytes), families);
  Add(kThreads, number(kStatThreads), families);
}

}  // namespace

const std::vector<MetricSpec>& ProcessMetricSpecs() {
  static const auto* specs =
      new std::vector<MetricSpec>{kCpu, kStart, kResident, kAllocated, kVirtual, kThreads, kOpen, kMax};
  return *specs;
}

std::vector<prometheus::MetricFamily> CollectProcessMetrics() {
  std::vector<prometheus::MetricFamily> families;
  AddStat(&families);
  Add(kAllocated, static_cast<double>(AllocatedBytes()), &families);
  if (absl::optional<double> open = OpenDescriptors()) Add(kOpen, *open, &families);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) Add(kMax, static_cast<double>(limit.rlim_cur), &families);
  return families;
}

}  // namespace trainyard
