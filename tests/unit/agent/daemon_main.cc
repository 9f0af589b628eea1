// A process that may run a daemon: as in worker/agent/main.cc, SIGCHLD is blocked before there is a second thread, and
// this process becomes the parent of trainers whose shim was killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>

int main(int argc, char** argv) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  setenv("GRPC_ENABLE_FORK_SUPPORT", "false", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
