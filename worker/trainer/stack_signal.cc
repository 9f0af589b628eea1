#include "worker/trainer/stack_signal.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "absl/debugging/symbolize.h"

namespace trainyard {
namespace {

// kOwnFrames, and the 32 frames that the daemon reads (kStackFrames in worker/agent/stack_request.cc).
constexpr int kFramesMax = 34;
// The first frames of a stack: the handler itself, and the frame through which the kernel returns.
constexpr int kOwnFrames = 2;
constexpr size_t kNameBytes = 224;

// Memory for the handler, allocated in advance.
char stack_path[4096];
char stack_temporary[4096 + 8];

void WriteText(int fd, const char* text) {
  if (write(fd, text, strlen(text)) < 0) return;
}

void WriteFrame(int fd, void* address) {
  char name[kNameBytes];
  // The call precedes the return address.
  void* call = static_cast<char*>(address) - 1;
  if (absl::Symbolize(call, name, sizeof name)) {
    WriteText(fd, name);
  } else if (Dl_info info; dladdr(call, &info) != 0 && info.dli_fname != nullptr) {
    const char* slash = strrchr(info.dli_fname, '/');
    WriteText(fd, "?? in ");
    WriteText(fd, slash == nullptr ? info.dli_fname : slash + 1);
  } else {
    WriteText(fd, "??");
  }
  WriteText(fd, "\n");
}

void WriteStack(int) {
  const int saved = errno;
  void* frames[kFramesMax];
  const int count = backtrace(frames, kFramesMax);
  const int fd = open(stack_temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0) {
    for (int i = kOwnFrames; i < count; ++i) WriteFrame(fd, frames[i]);
    close(fd);
    rename(stack_temporary, stack_path);
  }
  errno = saved;
}

}  // namespace

void WriteStackAtSignal(const std::string& path) {
  if (path.empty() || path.size() >= sizeof stack_path) return;
  memcpy(stack_path, path.c_str(), path.size() + 1);
  snprintf(stack_temporary, sizeof stack_temporary, "%s.tmp", stack_path);
  absl::InitializeSymbolizer("/proc/self/exe");
  void* frame;
  backtrace(&frame, 1);  // loads the unwinder, which a handler must not do
  struct sigaction action = {};
  action.sa_handler = WriteStack;
  action.sa_flags = SA_RESTART;
  sigaction(SIGQUIT, &action, nullptr);
}

}  // namespace trainyard
