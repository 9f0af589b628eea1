#include "common/standard_descriptors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "common/descriptor_limit.h"

namespace trainyard {
namespace {

// Closes the descriptors from `first_closed` to 2 and calls OpenStandardDescriptors. Returns 0 if each of them is then
// /dev/null, and the next descriptor that is opened has another number. Otherwise returns 10 plus the descriptor that
// is not /dev/null, or 20 if the next descriptor is one of 0 to 2.
int OpenAfterClosing(int first_closed) {
  for (int fd = first_closed; fd <= 2; ++fd) close(fd);
  OpenStandardDescriptors();
  for (int fd = first_closed; fd <= 2; ++fd) {
    struct stat st = {};
    if (fstat(fd, &st) != 0 || st.st_rdev != makedev(1, 3)) return 10 + fd;
  }
  return open("/dev/null", O_RDONLY) > 2 ? 0 : 20;
}

TEST(StandardDescriptors, ClosedDescriptors_AreOpenedOnDevNull) {
  for (int first_closed : {0, 1, 2, 3}) {
    const pid_t child = fork();
    if (child == 0) _exit(OpenAfterClosing(first_closed));
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "with descriptors from " << first_closed << " on closed, the child ended with wait status " << status;
  }
}

TEST(DescriptorLimit, IsRaisedToTheHardLimit) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);

  const rlim_t raised = RaiseDescriptorLimit();

  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(raised, before.rlim_max);
}

}  // namespace
}  // namespace trainyard
