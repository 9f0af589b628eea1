// How the daemon reads /proc and cgroups: those of real processes where necessary, otherwise texts that the tests give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/memory_kills.h"
#include "worker/agent/process_probe.h"
#include "worker/agent/stack_request.h"
#include "worker/trainer/stack_signal.h"

namespace trainyard::agent {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A child process that waits, or that computes without end.
class Child {
 public:
  explicit Child(bool spins) : pid_(fork()) {
    if (pid_ != 0) return;
    volatile uint64_t count = 0;
    while (true) {
      if (spins) {
        count = count + 1;
      } else {
        pause();
      }
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

v1::Examination Examine(pid_t pid) {
  absl::Notification done;
  v1::Examination examination;
  ProcessExaminer examiner(
      [&](Event event) {
        examination = std::get<ProcessExamined>(event).examination;
        done.Notify();
      },
      nullptr, absl::Milliseconds(200));
  examiner.Examine({.id = {}, .pid = pid, .request_id = "r1"});
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  return examination;
}

v1::Examination ExamineUntil(pid_t pid, absl::FunctionRef<bool(const v1::Examination&)> holds) {
  v1::Examination examination;
  const absl::Time end = absl::Now() + absl::Seconds(60);
  do {
    examination = Examine(pid);
  } while (!holds(examination) && absl::Now() < end);
  EXPECT_TRUE(holds(examination)) << examination.ShortDebugString();
  return examination;
}

TEST(ParseProcessStat, ReadsTheStateAndTheTimesAfterAnyName) {
  auto stat = ParseProcessStat("42 (a) R (b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 12345 1 2 3\n");

  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->state, "S");
  EXPECT_DOUBLE_EQ(stat->cpu_s, 300.0 / static_cast<double>(sysconf(_SC_CLK_TCK)));
  EXPECT_FALSE(ParseProcessStat("42 (a").ok());
  EXPECT_FALSE(ParseProcessStat("").ok());
}

TEST(ParseSystemCall, NamesTheCall) {
  EXPECT_EQ(ParseSystemCall("running\n"), "");
  EXPECT_EQ(ParseSystemCall("-1 0x7ffd 0x7f\n"), "");
  EXPECT_EQ(ParseSystemCall("0 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ffd 0x7f\n"), "read");
  EXPECT_EQ(ParseSystemCall("9999 0x3\n"), "system call 9999");
  EXPECT_EQ(ParseSystemCall(""), "");
}

TEST(ParseKernelStack, ReadsTheNames) {
  EXPECT_THAT(ParseKernelStack("[<0>] futex_wait_queue+0x60/0x90\n[<0>] do_futex+0x1/0x2\n[<0>] x+0x1/0x2\n", 2),
              ElementsAre("futex_wait_queue", "do_futex"));
}

TEST(ReadProcessStat, SeesAStoppedProcess) {
  Child child(/*spins=*/false);
  kill(child.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, WUNTRACED), child.pid());

  auto stat = ReadProcessStat(child.pid());

  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->state, "T");
}

TEST(ReadProcessStat, OfNoProcess_IsNotFound) { EXPECT_TRUE(absl::IsNotFound(ReadProcessStat(1 << 29).status())); }

TEST(ProcessExaminer, SpinningProcess_UsesItsCore) {
  Child child(/*spins=*/true);

  // On a busy machine the child may get no CPU time for a while.
  v1::Examination examination =
      ExamineUntil(child.pid(), [](const v1::Examination& it) { return it.cpu_share() > 0.05; });

  EXPECT_EQ(examination.request_id(), "r1");
  EXPECT_EQ(examination.state(), "R");
  EXPECT_EQ(examination.system_call(), "");
}

TEST(ProcessExaminer, WaitingProcess_UsesNoCpu_AndItsSystemCallIsNamedIfReadable) {
  Child child(/*spins=*/false);

  // The child may not have reached its wait yet.
  v1::Examination examination =
      ExamineUntil(child.pid(), [](const v1::Examination& it) { return it.state() == "S" && it.cpu_share() < 0.05; });

  // Where the kernel has no system call `pause`, pause() makes a ppoll; a container may hide the system call.
  EXPECT_THAT(examination.system_call(), AnyOf("pause", "ppoll", ""));
  EXPECT_TRUE(examination.stack_size() > 0 || !examination.stack_note().empty());
}

TEST(ProcessExaminer, ExitedProcess_IsReportedAsSuch) {
  v1::Examination examination = Examine(1 << 29);

  EXPECT_EQ(examination.state(), "");
  EXPECT_EQ(examination.stack_note(), "the process has exited");
}

TEST(ProcessExaminer, WithAStack_ReportsTheStackOfTheProcess_OrThatOfTheKernelWithTheReason) {
  Child child(/*spins=*/false);
  auto examine = [&](StackAnswer answer) {
    absl::Notification done;
    v1::Examination examination;
    ProcessExaminer examiner(
        [&](Event event) {
          examination = std::get<ProcessExamined>(event).examination;
          done.Notify();
        },
        [&](const ExamineProcess&, ProcessExaminer::Pause) { return answer; });
    examiner.Examine({.id = {}, .pid = child.pid(), .request_id = "r1", .with_stack = true});
    done.WaitForNotification();
    return examination;
  };

  v1::Examination reported = examine({.frames = {"Spin()", "main"}, .note = ""});
  EXPECT_THAT(reported.stack(), ElementsAre("Spin()", "main"));
  EXPECT_EQ(reported.stack_note(), "");
  EXPECT_EQ(reported.request_id(), "r1");
  v1::Examination unanswered = examine({.frames = {}, .note = "the process did not answer within 3s"});
  EXPECT_THAT(unanswered.stack_note(), StartsWith("the process did not answer within 3s; "));
}

TEST(RequestStack, IsAnsweredByTheTrainersHandlerAndRefusedForAStoppedOrExitedProcess) {
  TemporaryFolder folder;
  const std::string file = JoinPath(folder.path(), kStackFile);
  auto request = [&](pid_t pid, absl::Duration limit) {
    return RequestStack(pid, folder.path(), limit, [](absl::Duration slice) {
      absl::SleepFor(slice);
      return true;
    });
  };
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    WriteStackAtSignal(file);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  absl::Cleanup end = [&] {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
  };

  for (const char* time : {"first request", "second request"}) {
    StackAnswer answer = request(child, absl::Seconds(30));
    ASSERT_FALSE(answer.frames.empty()) << time << ": " << answer.note;
    // The innermost frames depend on where the signal has interrupted the process.
    EXPECT_THAT(absl::StrJoin(answer.frames, "\n"), HasSubstr("RequestStack_IsAnsweredByTheTrainersHandler")) << time;
  }

  kill(child, SIGSTOP);
  int status;
  waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(request(child, absl::Seconds(30)).note, "the process is stopped and cannot answer");
  EXPECT_EQ(request(1 << 29, absl::Seconds(30)).note, "the process has exited");
}

// A fake proc file system with cgroups.
class MemoryKillsTest : public ::testing::Test {
 protected:
  MemoryKillsTest() { Write("proc/vmstat", "pgfault 7\noom_kill 3\n"); }

  void Write(const std::string& path, const std::string& text) {
    std::string whole = JoinPath(root_, path);
    ASSERT_TRUE(MakeFolders(whole.substr(0, whole.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(whole, text).ok());
  }
  std::string proc() const { return JoinPath(root_, "proc"); }

  const TemporaryFolder temporary_;
  const std::string root_ = temporary_.path();
};

TEST_F(MemoryKillsTest, KillInACgroupOfVersion2_IsDetected) {
  Write("proc/7/cgroup", "0::/jobs/a\n");
  Write("proc/self/mountinfo", absl::StrCat("36 35 0:30 / ", root_, "/cg rw - cgroup2 cgroup2 rw\n"));
  Write("cg/jobs/a/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n");
  Write("cg/jobs/a/memory.max", "536870912\n");
  MemoryKills before = CountMemoryKills(7, proc());
  EXPECT_EQ(FormatMemoryKill(before, RecountMemoryKills(before, proc())), "");

  Write("cg/jobs/a/memory.events", "oom_kill 3\n");
  Write("proc/vmstat", "oom_kill 4\n");

  EXPECT_EQ(FormatMemoryKill(before, RecountMemoryKills(before, proc())),
            absl::StrCat("out of memory: the kernel killed it (cgroup ", root_,
                         "/cg/jobs/a, limit 512 MiB: oom_kill 2 to 3)"));
}

TEST_F(MemoryKillsTest, KillInACgroupOfVersion1_InAContainer_IsDetected) {
  // Only the container's own part of the hierarchy is mounted.
  Write("proc/7/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x/sub\n0::/docker/x\n");
  Write("proc/self/mountinfo", absl::StrCat("30 25 0:26 /docker/x ", root_, "/cpu ro - cgroup cgroup rw,cpu,cpuacct\n",
                                            "31 25 0:27 /docker/x ", root_, "/mem ro - cgroup cgroup rw,memory\n"));
  Write("mem/sub/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  Write("mem/sub/memory.limit_in_bytes", "9223372036854771712\n");
  MemoryKills before = CountMemoryKills(7, proc());

  Write("mem/sub/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");

  EXPECT_EQ(FormatMemoryKill(before, RecountMemoryKills(before, proc())),
            absl::StrCat("out of memory: the kernel killed it (cgroup ", root_, "/mem/sub: oom_kill 0 to 1)"));
}

TEST_F(MemoryKillsTest, KillElsewhereOnTheHost_IsNotAttributedToTheProcess) {
  Write("proc/7/cgroup", "0::/a\n");
  Write("proc/self/mountinfo", absl::StrCat("36 35 0:30 / ", root_, "/cg rw - cgroup2 cgroup2 rw\n"));
  Write("cg/a/memory.events", "oom_kill 2\n");
  MemoryKills before = CountMemoryKills(7, proc());

  Write("proc/vmstat", "oom_kill 4\n");

  EXPECT_EQ(FormatMemoryKill(before, RecountMemoryKills(before, proc())), "");
}

TEST_F(MemoryKillsTest, KillThatEndedOneRank_DoesNotExplainTheEndOfAnother) {
  Write("proc/7/cgroup", "0::/a\n");
  Write("proc/8/cgroup", "0::/a\n");
  Write("proc/9/cgroup", "0::/b\n");
  Write("proc/self/mountinfo", absl::StrCat("36 35 0:30 / ", root_, "/cg rw - cgroup2 cgroup2 rw\n"));
  Write("cg/a/memory.events", "oom_kill 2\n");
  Write("cg/b/memory.events", "oom_kill 0\n");
  const MemoryKills killed = CountMemoryKills(7, proc());
  MemoryKills other = CountMemoryKills(8, proc());
  MemoryKills elsewhere = CountMemoryKills(9, proc());
  Write("cg/a/memory.events", "oom_kill 3\n");
  MemoryKills later = CountMemoryKills(8, proc());
  const MemoryKills latest = RecountMemoryKills(killed, proc());
  ASSERT_THAT(FormatMemoryKill(killed, latest), HasSubstr("oom_kill 2 to 3"));

  for (MemoryKills* kills : {&other, &elsewhere, &later}) DiscountMemoryKill(latest, *kills);

  EXPECT_EQ(FormatMemoryKill(other, RecountMemoryKills(other, proc())), "");
  // The next kill explains the end of a rank again, also of one that was started after the first kill.
  Write("cg/a/memory.events", "oom_kill 4\n");
  Write("cg/b/memory.events", "oom_kill 1\n");
  for (const MemoryKills& kills : {other, elsewhere, later}) {
    EXPECT_THAT(FormatMemoryKill(kills, RecountMemoryKills(kills, proc())), HasSubstr("the kernel killed it"));
  }
}

TEST_F(MemoryKillsTest, WithoutACgroup_AKillOnTheHostIsAttributedOnce) {
  const MemoryKills killed = CountMemoryKills(7, proc());
  MemoryKills other = CountMemoryKills(8, proc());
  Write("proc/vmstat", "oom_kill 4\n");
  const MemoryKills latest = RecountMemoryKills(killed, proc());
  ASSERT_THAT(FormatMemoryKill(killed, latest), HasSubstr("probably out of memory"));

  DiscountMemoryKill(latest, other);

  EXPECT_EQ(FormatMemoryKill(other, RecountMemoryKills(other, proc())), "");
}

TEST_F(MemoryKillsTest, WithoutACgroup_TheHostsCounterIsUsed) {
  MemoryKills before = CountMemoryKills(7, proc());

  Write("proc/vmstat", "oom_kill 4\n");

  EXPECT_THAT(FormatMemoryKill(before, RecountMemoryKills(before, proc())), HasSubstr("probably out of memory"));
  EXPECT_THAT(FormatMemoryKill({}, {}), IsEmpty());
}

}  // namespace
}  // namespace trainyard::agent
