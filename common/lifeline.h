// The lifeline: a pipe by which one process (trainctl run) takes all that it started with it. It alone holds the
// writing end; the private coordinator, the private worker daemon and every shim hold the reading end, all of the same
// pipe.
//
//   the writing end closes, nothing was written     its holder is gone, however that came: everybody ends at once
//   one byte, 'L', was written (LetGo below)        everybody goes on without: the end of the pipe, now or later, means
//                                                   nothing any more. The daemons leave by themselves once the job has
//                                                   ended: nobody is left who would stop them
//
// Nobody reads the byte: a reader would take it from the others. It stays in the pipe, where each of them sees that it
// is there, also a shim that is started later. So the order is: write the byte, then close or exit; nothing more to
// wait for.
//
//   poll({lifeline, POLLIN}) ... revents != 0:
//   switch (LookAtLifeline(lifeline)) { kLetGo: lifeline = -1; ... kEnded: leave ...}
//
// Functions keep no state and call libc alone, so that the shim can use them.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

namespace trainyard {

inline constexpr char kLetGoByte = 'L';

enum class Lifeline { kLetGo, kEnded };

// REQUIRES: poll has told of something at `fd`, the reading end.
inline Lifeline LookAtLifeline(int fd) {
  int waiting = 0;
  return ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 0 ? Lifeline::kLetGo : Lifeline::kEnded;
}

// For the holder of the writing end. False when nobody is left to let go (SIGPIPE must be ignored) or `fd` is no pipe.
inline bool LetGo(int fd) { return write(fd, &kLetGoByte, 1) == 1; }

}  // namespace trainyard
