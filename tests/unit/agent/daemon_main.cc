// The main function of the tests that run a daemon. As in worker/agent/main.cc, it blocks SIGCHLD before there is a
// second thread, and makes this process the parent of trainers whose shim was killed.
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
