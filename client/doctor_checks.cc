#include "client/doctor_checks.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/text.h"
#include "common/files.h"
#include "common/network.h"
#include "common/version.h"

namespace trainyard::client {
namespace {

// The largest difference of clocks that is no problem, in seconds. Clocks are used only for displayed timestamps, but
// logs of hosts whose clocks differ by more are hard to compare.
constexpr double kSkewMax = 0.5;
constexpr uint64_t kDiskMin = uint64_t{1} << 30;    // less free space is a problem
constexpr uint64_t kDiskNote = uint64_t{10} << 30;  // less free space is reported as a note

using Level = Finding::Level;

class HostChecker {
 public:
  HostChecker(const v1::ServerInfo& server, const v1::ListHostsResponse& hosts) : server_(server) {
    std::map<std::string, int> version_counts;
    for (const v1::HostStatus& host : hosts.hosts()) {
      if (!host.attached()) continue;
      ++version_counts[host.torch_version()];
      reachable_address_ += host.data_address().empty() || IsLoopbackHost(host.data_address()) ? 0 : 1;
      for (const auto& [key, value] : host.labels()) ++labels_[key];
      ++attached_;
    }
    auto most_common = std::max_element(version_counts.begin(), version_counts.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most_common != version_counts.end()) torch_ = most_common->first;
  }

  std::vector<Finding> Check(const v1::HostStatus& host) {
    findings_.clear();
    host_ = &host;
    if (!host.attached()) {
      Problem(absl::StrCat("is not attached; last contact ", DurationText(absl::Seconds(host.last_heard_s())),
                           " ago. Start its trainyard-worker, or run trainctl drain ", host.name(),
                           " --lost if the host is gone"));
      return findings_;
    }
    if (!host.reachable()) {
      Problem(absl::StrCat("does not answer; last contact ", DurationText(absl::Seconds(host.last_heard_s())), " ago"));
    }
    if (!host.trouble().empty()) Problem(Printable(host.trouble(), 500));
    if (!host.unknown_jobs().empty()) {
      Problem(absl::StrCat("runs jobs that the coordinator does not know: ", absl::StrJoin(host.unknown_jobs(), ", "),
                           "; end them with trainctl cancel"));
    }
    if (host.cordoned()) Note(absl::StrCat("is cordoned: ", Printable(host.cordon_reason(), 300)));
    if (host.draining()) Note("its daemon is leaving");
    Versions();
    Clock();
    Disk();
    Labels();
    if (IsLoopbackHost(host.data_address()) && reachable_address_ > 0) {
      Problem(absl::StrCat(
          "announces the loopback address ", host.data_address(),
          ", at which other hosts cannot reach its ranks; attach its daemon through an address that they can reach"));
    }
    if (findings_.empty()) {
      Add(Level::kOk,
          absl::StrFormat("%d of %d slots free, clock %+.3f s, %s free, version %s", host.slots_free(), host.slots(),
                          host.clock_offset_s(), BytesText(host.disk_free_bytes()), host.version()));
    }
    return findings_;
  }

 private:
  void Versions() {
    if (host_->version() != server_.version()) {
      Problem(absl::StrCat("runs trainyard-worker ", host_->version(), ", but the coordinator is ", server_.version(),
                           "; install the same version everywhere"));
    }
    if (host_->torch_version() != torch_) {
      Problem(absl::StrCat("has LibTorch ", host_->torch_version(), ", but most hosts have ", torch_,
                           "; ranks of one job could compute different numbers"));
    }
  }

  void Clock() {
    if (std::abs(host_->clock_offset_s()) <= kSkewMax) return;
    Problem(absl::StrFormat("its clock is %.3f s %s the coordinator's; run a time service (chrony, ntpd)",
                            std::abs(host_->clock_offset_s()), host_->clock_offset_s() > 0 ? "ahead of" : "behind"));
  }

  void Disk() {
    if (host_->disk_free_bytes() == 0 || host_->disk_free_bytes() >= kDiskNote) return;
    const bool little = host_->disk_free_bytes() < kDiskMin;
    Add(little ? Level::kProblem : Level::kNote,
        absl::StrCat("has ", BytesText(host_->disk_free_bytes()), " free on the disk of its state folder"));
  }

  void Labels() {
    std::vector<std::string> missing;
    for (const auto& [key, count] : labels_) {
      if (count < attached_ && host_->labels().count(key) == 0) missing.push_back(key);
    }
    if (missing.empty()) return;
    Note(absl::StrCat("lacks the label ", absl::StrJoin(missing, ", "), " that other hosts have"));
  }

  void Add(Level level, std::string text) { findings_.push_back({level, host_->name(), std::move(text)}); }
  void Note(std::string text) { Add(Level::kNote, std::move(text)); }
  void Problem(std::string text) { Add(Level::kProblem, std::move(text)); }

  const v1::ServerInfo& server_;
  const v1::HostStatus* host_ = nullptr;
  std::vector<Finding> findings_;
  std::map<std::string, int> labels_;
  std::string torch_;
  int attached_ = 0, reachable_address_ = 0;
};

absl::Status ListenOnLoopback() {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "cannot create a socket");
  absl::Cleanup close_fd = [fd] { close(fd); };
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1) != 0) {
    return ErrnoStatus(errno, "cannot listen on 127.0.0.1");
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Finding> CheckHosts(const v1::ServerInfo& server, const v1::ListHostsResponse& hosts) {
  std::vector<Finding> findings;
  if (server.version() != kVersion) {
    findings.push_back({Level::kNote, "trainctl",
                        absl::StrCat("is version ", kVersion, ", but the coordinator is ", server.version())});
  }
  if (hosts.hosts().empty()) {
    findings.push_back({Level::kProblem, "coordinator", "no host has attached yet; start trainyard-worker on one"});
  }
  HostChecker checker(server, hosts);
  for (const v1::HostStatus& host : hosts.hosts()) {
    for (Finding& finding : checker.Check(host)) findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> CheckThisMachine(const std::string& binary_folder, const std::string& working_directory) {
  std::vector<Finding> findings;
  for (const char* program : {"trainyard-coordinator", "trainyard-worker", "trainyard-shim", "trainyard-trainer"}) {
    if (access(JoinPath(binary_folder, program).c_str(), X_OK) == 0) continue;
    findings.push_back({Level::kNote, "trainctl",
                        absl::StrCat(program, " is not next to trainctl in ", binary_folder,
                                     "; trainctl run without a coordinator needs it")});
  }
  if (access(working_directory.c_str(), W_OK) != 0) {
    findings.push_back(
        {Level::kNote, "trainctl",
         absl::StrCat(working_directory, " is not writable (", strerror(errno), "): set checkpoint.dir in your jobs")});
  }
  struct statvfs disk = {};
  if (statvfs(working_directory.c_str(), &disk) == 0) {
    const uint64_t bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
    if (bytes < kDiskMin) {
      findings.push_back(
          {Level::kProblem, "trainctl", absl::StrCat(working_directory, " has only ", BytesText(bytes), " free")});
    }
  }
  if (absl::Status listening = ListenOnLoopback(); !listening.ok()) {
    findings.push_back({Level::kProblem, "trainctl", std::string(listening.message())});
  }
  if (findings.empty())
    findings.push_back({Level::kOk, "trainctl", "programs, working directory, disk and ports are fine"});
  return findings;
}

std::string WhyNotProbed(const v1::HostStatus& host) {
  if (!host.attached()) return "not attached";
  if (!host.reachable()) return "does not answer";
  if (!host.trouble().empty()) return host.trouble();
  if (host.cordoned()) return "cordoned";
  if (host.draining()) return "its daemon is leaving";
  if (host.slots_free() > 0) return "";
  return host.jobs().empty() ? "busy: no free slot"
                             : absl::StrCat("busy with ", absl::StrJoin(host.jobs(), ", "), ": no free slot");
}

bool AnyProblem(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::kProblem; });
}

}  // namespace trainyard::client
