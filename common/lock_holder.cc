#include "common/lock_holder.h"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/escape.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr size_t kCommandBytes = 200;

std::string ProcessText(int64_t pid) {
  absl::StatusOr<std::string> line = ReadFile(absl::StrCat("/proc/", pid, "/cmdline"));
  std::string command = line.ok() ? absl::StrReplaceAll(*line, {{absl::string_view("\0", 1), " "}}) : "";
  absl::StripAsciiWhitespace(&command);
  if (command.size() > kCommandBytes) command = absl::StrCat(command.substr(0, kCommandBytes), "...");
  return absl::StrCat("process ", pid, command.empty() ? "" : absl::StrCat(" (", EscapeText(command), ")"));
}

}  // namespace

std::string LockHolder(const std::string& path) {
  struct stat file;
  return stat(path.c_str(), &file) == 0 ? LockHolder(file) : "";
}

std::string LockHolder(const struct stat& file) {
  absl::StatusOr<std::string> locks = ReadFile("/proc/locks");
  if (!locks.ok()) return "";
  const std::string id = absl::StrFormat("%02x:%02x:%d", major(file.st_dev), minor(file.st_dev), file.st_ino);
  for (absl::string_view line : absl::StrSplit(*locks, '\n')) {
    // "1: FLOCK  ADVISORY  WRITE 708 00:13:1234 0 EOF"; a waiting process has "->" after its number.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t pid = 0;
    if (fields.size() < 6 || fields[1] == "->" || fields[5] != id) continue;
    if (absl::SimpleAtoi(fields[4], &pid) && pid > 0) return ProcessText(pid);
  }
  return "";
}

std::string LockFileText() {
  char host[256] = {};
  const bool known = gethostname(host, sizeof host - 1) == 0;
  return absl::StrCat(getpid(), known ? " " : "", known ? host : "", "\n");
}

std::string HolderInLockFile(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t pid = 0;
  if (fields.empty() || !absl::SimpleAtoi(fields[0], &pid)) return "another process";
  return absl::StrCat("process ", pid, fields.size() > 1 ? absl::StrCat(" on host ", EscapeText(fields[1])) : "");
}

std::string HolderInLockFile(int fd) {
  char text[320];
  const ssize_t n = pread(fd, text, sizeof text, 0);
  return HolderInLockFile(absl::string_view(text, n > 0 ? static_cast<size_t>(n) : 0));
}

}  // namespace trainyard
