// Settings of a trainer process for test programs that run ranks as threads. They take effect before the first test.
#include <signal.h>
#include <stdlib.h>

namespace {

// LibTorch's flight recorder is off: there is one per process, and it does not support two groups at the same time.
// LibTorch reads this variable when it first uses the recorder.
[[maybe_unused]] const int kRecorderIsOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// A write to a connection that the peer has closed returns an error instead of raising SIGPIPE, as in
// worker/trainer/main.cc. gloo writes without MSG_NOSIGNAL, so that a group that aborts first would otherwise end the
// process of the other ranks.
[[maybe_unused]] const sighandler_t kIgnoresClosedPeers = signal(SIGPIPE, SIG_IGN);

}  // namespace
