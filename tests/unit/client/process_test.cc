// Waiting for the processes of a private cluster, and killing them.
#include "client/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

namespace trainyard::client {
namespace {

class BlockedChildSignal {
 public:
  BlockedChildSignal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockedChildSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedChildSignal(const BlockedChildSignal&) = delete;
  BlockedChildSignal& operator=(const BlockedChildSignal&) = delete;

 private:
  sigset_t before_;
};

// Starts a process that runs until it is killed.
pid_t StartEndlessChild() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (true) pause();
}

TEST(Children, ThoseOfBefore_AreNeitherAwaitedNorKilled) {
  const BlockedChildSignal blocked;
  const pid_t before = StartEndlessChild();
  const std::set<pid_t> others = Children();
  ASSERT_EQ(others.count(before), 1u);
  const pid_t own = StartEndlessChild();

  EXPECT_FALSE(WaitForDescendants(absl::ZeroDuration(), others)) << "the child `own` still runs";
  KillChildren(others);
  EXPECT_TRUE(WaitForDescendants(absl::Seconds(30), others));

  EXPECT_NE(kill(own, 0), 0) << "the child `own` was not killed and reaped";
  EXPECT_EQ(kill(before, 0), 0);
  kill(before, SIGKILL);
  EXPECT_EQ(waitpid(before, nullptr, 0), before);
}

}  // namespace
}  // namespace trainyard::client
