#include "worker/agent/stack_request.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "worker/agent/process_probe.h"

namespace trainyard::agent {
namespace {

constexpr size_t kFileBytes = 16 << 10;
constexpr size_t kStackFrames = 32;
constexpr size_t kFrameBytes = 256;
constexpr absl::Duration kAnswerPollInterval = absl::Milliseconds(20);

}  // namespace

StackAnswer RequestStack(pid_t pid, const std::string& folder, absl::Duration limit,
                         absl::FunctionRef<bool(absl::Duration)> pause) {
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat.ok()) return {.frames = {}, .note = "the process has exited"};
  if (stat->state == "T" || stat->state == "t")
    return {.frames = {}, .note = "the process is stopped and cannot answer"};
  const std::string file = JoinPath(folder, kStackFile);
  unlink(file.c_str());
  // tgkill sends the signal to the main thread; kill would choose any thread that does not block the signal.
  if (syscall(SYS_tgkill, pid, pid, SIGQUIT) != 0) {
    return {.frames = {}, .note = absl::StrCat("cannot signal the process: ", strerror(errno))};
  }
  StackAnswer answer;
  for (absl::Duration waited; waited < limit; waited += kAnswerPollInterval) {
    absl::StatusOr<std::string> text = ReadFile(file, kFileBytes);
    if (text.ok()) {
      for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
        if (answer.frames.size() < kStackFrames) answer.frames.push_back(ValidUtf8(line, kFrameBytes));
      }
      if (answer.frames.empty()) answer.note = "the process reported no frames";
      return answer;
    }
    if (!pause(kAnswerPollInterval)) break;
  }
  answer.note = absl::StrCat("the process did not answer within ", absl::FormatDuration(limit),
                             stat->state == "D" ? " (it is blocked in the kernel)" : "");
  return answer;
}

}  // namespace trainyard::agent
