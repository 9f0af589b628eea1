#include "client/line_input.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/interrupts.h"
#include "client/output.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/plain_text.h"

namespace trainyard::client {
namespace {

constexpr size_t kLineBytesMax = 64 << 10;

}  // namespace

LineInput::LineInput() {
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

LineInput::~LineInput() {
  close(signals_);
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

absl::StatusOr<std::string> LineInput::Read(absl::string_view prompt) {
  WriteNow(stderr, EscapeText(prompt));
  bool is_too_long = false;
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (is_too_long || line.size() > kLineBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("the line has more than ", kLineBytesMax, " bytes"));
      }
      if (const std::string why = WhyNotPlainText(line); !why.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the answer ", why, ", perhaps from an arrow key; type it again"));
      }
      return line;
    }
    if (buffer_.size() > kLineBytesMax) {
      is_too_long = true;
      buffer_.clear();
    }
    pollfd ready[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                      {.fd = signals_, .events = POLLIN, .revents = 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot wait for an answer");
    if ((ready[1].revents & POLLIN) != 0) {
      signalfd_siginfo info;
      if (read(signals_, &info, sizeof info) == sizeof info) return absl::CancelledError("ended by Ctrl-C");
    }
    if (ready[0].revents == 0) continue;
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
    if (count == 0) return absl::OutOfRangeError("the input has ended");
    // The terminal was closed.
    if (count < 0 && errno != EINTR) return absl::OutOfRangeError("the input cannot be read");
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace trainyard::client
