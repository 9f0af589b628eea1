#include "bench/control/coordinator_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace trainyard::bench {

absl::Status CoordinatorProcess::Start() {
  std::string listen = address_.empty() ? "127.0.0.1:0" : address_;
  std::string state = absl::StrCat(folder_, "/coordinator");
  std::string log = absl::StrCat(folder_, "/coordinator.log");
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::UnavailableError("cannot create a pipe");
  std::string ready_fd = absl::StrCat(ready[1]);
  const char* arguments[] = {program_.c_str(), "--listen", listen.c_str(), "--state",        state.c_str(),
                             "--metrics",      "",         "--ready-fd",   ready_fd.c_str(), "--allow-local-users",
                             nullptr};
  pid_ = fork();
  if (pid_ == 0) {
    // The coordinator must not outlive the bench.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fcntl(ready[1], F_SETFD, 0);
    int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(program_.c_str(), const_cast<char**>(arguments));
    _exit(127);
  }
  close(ready[1]);
  absl::Status served = AwaitReady(ready[0]);
  close(ready[0]);
  if (!served.ok()) Kill();
  return served;
}

absl::Status CoordinatorProcess::AwaitReady(int fd) {
  std::string line;
  char byte;
  while (read(fd, &byte, 1) == 1 && byte != '\n') line.push_back(byte);
  nlohmann::json ready = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!ready.is_object()) {
    return absl::UnavailableError(absl::StrCat(program_, " did not start; see ", folder_, "/coordinator.log"));
  }
  address_ = ready.value("listen", "");
  return absl::OkStatus();
}

void CoordinatorProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

absl::Duration CoordinatorProcess::cpu_time() const {
  clockid_t clock;
  timespec used{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) return absl::ZeroDuration();
  return absl::DurationFromTimespec(used);
}

int64_t CoordinatorProcess::resident_bytes() const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "VmRSS:")) continue;
    std::vector<std::string> fields = absl::StrSplit(rest, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kib = 0;
    if (!fields.empty() && absl::SimpleAtoi(fields[0], &kib)) return kib << 10;
  }
  return 0;
}

absl::Duration MeasureDataSync(const std::string& folder) {
  constexpr int kTimes = 201;
  std::string path = absl::StrCat(folder, "/sync");
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  std::string block(4096, 'x');
  std::vector<absl::Duration> times;
  for (int i = 0; i < kTimes; ++i) {
    absl::Time begin = absl::Now();
    if (pwrite(fd, block.data(), block.size(), 0) < 0 || fdatasync(fd) != 0) break;
    times.push_back(absl::Now() - begin);
  }
  close(fd);
  unlink(path.c_str());
  if (times.empty()) return absl::InfiniteDuration();
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace trainyard::bench
