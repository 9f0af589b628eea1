// The lifeline is a pipe through which processes notice that the trainctl (`run`, `launch` or `parity`) that started
// them has ended, so that they end too. Only trainctl holds the write end. Its private coordinator, its private worker
// daemon and every shim hold the read end of the same pipe.
//
//   The write end was closed and nothing was written: its holder has exited or was killed, and all processes end
//   immediately.
//   One byte, 'L', was written (ReleaseLifeline below): all processes continue, and closing the pipe has no effect any
//   more. The daemons exit on their own once the job has ended, because no other process would stop them.
//
// No process reads the byte, because reading would remove it for the others. It stays in the pipe, where each process,
// including a shim that is started later, can see it. The holder therefore writes the byte, then closes or exits; it
// need not wait.
//
//   poll({lifeline, POLLIN}) ... revents != 0:
//   switch (PeekLifeline(lifeline)) { kReleased: lifeline = -1; ... kEnded: exit ...}
//
// Functions keep no state and call only libc, so that the shim can use them.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

namespace trainyard {

inline constexpr char kReleaseByte = 'L';

enum class Lifeline { kReleased, kEnded };

// REQUIRES: poll has reported an event on `fd`, the read end.
inline Lifeline PeekLifeline(int fd) {
  int waiting = 0;
  return ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 0 ? Lifeline::kReleased : Lifeline::kEnded;
}

// For the holder of the write end. False if no process holds the read end (SIGPIPE must be ignored) or `fd` is not a
// pipe.
inline bool ReleaseLifeline(int fd) { return write(fd, &kReleaseByte, 1) == 1; }

}  // namespace trainyard
