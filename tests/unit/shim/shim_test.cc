// The shim with small programs in place of the trainer. Launch and exit records are written and read by the daemon's
// code, so the shim and the daemon are tested against each other.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/lifeline.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/rank_folder.h"
#include "worker/shim/process.h"
#include "worker/shim/records.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

bool WaitUntil(const std::function<bool()>& condition) {
  for (absl::Time end = absl::Now() + kPatience; absl::Now() < end; absl::SleepFor(absl::Milliseconds(2))) {
    if (condition()) return true;
  }
  return condition();
}

bool IsGone(pid_t pid) { return shim::StartTime(pid) == 0; }

class ShimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Makes this process the parent of the processes that a killed shim leaves behind; TearDown reaps them.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  void TearDown() override {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  // Runs `script` in /bin/sh below a shim. Returns the shim's pid.
  pid_t Start(const std::string& script, uint64_t log_bytes = 1 << 20, int lifeline = -1) {
    return StartProgram({.program = "/bin/sh",
                         .arguments = {"sh", "-c", script},
                         .variables = {"PATH=/usr/bin:/bin", "COLOUR=green"},
                         .log_bytes = log_bytes},
                        lifeline);
  }
  pid_t StartProgram(const agent::LaunchRecord& launch, int lifeline = -1) {
    EXPECT_EQ(agent::MakeRankFolder(folder_, launch), absl::OkStatus());
    return StartShim(lifeline);
  }
  pid_t StartShim(int lifeline = -1) {
    std::string program = JoinPath(std::filesystem::path(BinaryFolder()).parent_path().string(), "trainyard-shim");
    std::string lifeline_text = absl::StrCat(lifeline);
    std::vector<const char*> arguments = {program.c_str(), "--dir", folder_.c_str()};
    if (lifeline >= 0) arguments.insert(arguments.end(), {"--lifeline-fd", lifeline_text.c_str()});
    arguments.push_back(nullptr);
    pid_t pid = 0;
    int error =
        posix_spawn(&pid, program.c_str(), nullptr, nullptr, const_cast<char* const*>(arguments.data()), environ);
    EXPECT_EQ(error, 0) << program;
    return pid;
  }
  // Waits for the shim to end and returns its exit code.
  int Wait(pid_t shim) {
    int status = 0;
    EXPECT_TRUE(WaitUntil([&] { return waitpid(shim, &status, WNOHANG) == shim; }));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  v1::TrainerExited ExitOf(pid_t shim) {
    Wait(shim);
    absl::StatusOr<v1::TrainerExited> exited = agent::ReadExit(folder_);
    EXPECT_EQ(exited.status(), absl::OkStatus());
    return exited.value_or(v1::TrainerExited());
  }
  agent::PidRecord Pids() {
    absl::StatusOr<agent::PidRecord> pids;
    EXPECT_TRUE(WaitUntil([&] { return (pids = agent::ReadPids(folder_)).ok(); }));
    return pids.value_or(agent::PidRecord());
  }
  std::string Output(const std::string& name) { return ReadFile(JoinPath(folder_, name)).value_or(""); }

  const TemporaryFolder root_;
  const std::string folder_ = root_ / "rank";
};

TEST_F(ShimTest, ExitCode_IsRecordedWithUsageAndOutput) {
  pid_t shim = Start("echo to out; echo to err >&2; exit 7");

  v1::TrainerExited exited = ExitOf(shim);

  EXPECT_EQ(exited.cause(), v1::TrainerExited::CAUSE_EXIT);
  EXPECT_EQ(exited.code(), 7);
  EXPECT_GT(exited.max_rss_bytes(), 100'000);
  EXPECT_THAT(exited.last_lines(), ::testing::UnorderedElementsAre("to out", "to err"));
  EXPECT_EQ(Output("stdout.log"), "to out\n");
  EXPECT_EQ(Output("stderr.log"), "to err\n");
}

TEST_F(ShimTest, Signal_IsRecorded) {
  v1::TrainerExited exited = ExitOf(Start("kill -SEGV $$"));

  EXPECT_EQ(exited.cause(), v1::TrainerExited::CAUSE_SIGNAL);
  EXPECT_EQ(exited.signal(), SIGSEGV);
}

TEST_F(ShimTest, MissingProgram_IsReportedAsAFailedStartThatNamesIt) {
  pid_t shim = StartProgram({.program = "/no/such/trainer", .arguments = {"t"}, .variables = {}, .log_bytes = 65536});

  v1::TrainerExited exited = ExitOf(shim);

  EXPECT_EQ(exited.cause(), v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_THAT(exited.message(), HasSubstr("/no/such/trainer"));
  EXPECT_THAT(exited.message(), HasSubstr("No such file"));
  EXPECT_FALSE(exited.may_pass());
}

TEST_F(ShimTest, Environment_ComesFromTheLaunchRecordOnly) {
  setenv("TRAINYARD_TEST_SECRET", "1", 1);

  Wait(Start("/usr/bin/env"));

  EXPECT_THAT(Output("stdout.log"), HasSubstr("COLOUR=green\n"));
  EXPECT_THAT(Output("stdout.log"), ::testing::Not(HasSubstr("TRAINYARD_TEST_SECRET")));
}

TEST_F(ShimTest, Pids_NameShimAndTrainerEachInItsOwnSession) {
  pid_t shim = Start("exec sleep 100");

  agent::PidRecord pids = Pids();

  EXPECT_EQ(pids.shim.pid, shim);
  EXPECT_EQ(pids.shim.start, shim::StartTime(shim));
  EXPECT_EQ(pids.trainer.start, shim::StartTime(pids.trainer.pid));
  EXPECT_EQ(getsid(shim), shim);
  EXPECT_EQ(getsid(pids.trainer.pid), pids.trainer.pid);
  EXPECT_FALSE(agent::CloseUnlessShimRuns(folder_));
  kill(-pids.trainer.pid, SIGKILL);
  EXPECT_EQ(ExitOf(shim).signal(), SIGKILL);
  EXPECT_TRUE(agent::CloseUnlessShimRuns(folder_));
}

TEST_F(ShimTest, PidsThatTheDiskRefuses_AreWrittenLaterWhileTheTrainerRuns) {
  ASSERT_EQ(agent::MakeRankFolder(folder_, {.program = "/bin/sh",
                                            .arguments = {"sh", "-c", "echo up; exec sleep 100"},
                                            .variables = {"PATH=/usr/bin:/bin"},
                                            .log_bytes = 65536}),
            absl::OkStatus());
  // A folder in the place of the temporary file makes the write fail.
  const std::string obstacle = JoinPath(folder_, "pid.tmp");
  std::filesystem::create_directory(obstacle);
  pid_t shim = StartShim();
  // The shim stores output only after its first attempt to write the pids.
  ASSERT_TRUE(WaitUntil([&] { return Output("stdout.log") == "up\n"; }));
  EXPECT_TRUE(absl::IsNotFound(agent::ReadPids(folder_).status()));

  std::filesystem::remove(obstacle);
  agent::PidRecord pids = Pids();

  EXPECT_EQ(pids.shim.pid, shim);
  EXPECT_EQ(getsid(pids.trainer.pid), pids.trainer.pid);
  kill(-pids.trainer.pid, SIGKILL);
  EXPECT_EQ(ExitOf(shim).signal(), SIGKILL);
}

TEST_F(ShimTest, LaunchRecord_IsReadableByItsOwnerOnly) {
  Wait(Start("true"));

  struct stat st;
  ASSERT_EQ(stat(JoinPath(folder_, "launch").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST_F(ShimTest, FloodOfOutput_DoesNotBlockAndKeepsTheNewestWithinTheLimit) {
  absl::Time start = absl::Now();
  uint64_t log_bytes = 1 << 20;

  v1::TrainerExited exited = ExitOf(Start("head -c 100000000 /dev/zero | tr '\\0' '\\n'; echo last", log_bytes));

  EXPECT_EQ(exited.code(), 0);
  EXPECT_EQ(exited.last_lines(exited.last_lines_size() - 1), "last");
  EXPECT_LT(absl::Now() - start, kPatience);
  uint64_t kept = 0;
  for (const char* name : {"stdout.log", "stdout.log.1", "stderr.log", "stderr.log.1"}) kept += Output(name).size();
  EXPECT_LE(kept, log_bytes);
  EXPECT_GT(kept, log_bytes / 4);
}

TEST_F(ShimTest, Rotation_SplitsNoLine) {
  Wait(Start("i=0; while [ $i -lt 12000 ]; do echo line $i of many; i=$((i+1)); done", 1 << 18));

  std::string rotated = Output("stdout.log.1");
  std::string current = Output("stdout.log");

  EXPECT_LE(rotated.size(), size_t{1} << 16);
  EXPECT_TRUE(rotated.ends_with(" of many\n")) << rotated.substr(rotated.size() - 40);
  EXPECT_TRUE(current.starts_with("line ")) << current.substr(0, 40);
  EXPECT_TRUE(current.ends_with("line 11999 of many\n"));
}

TEST_F(ShimTest, LastLines_AreTheNewestTwentyAndALongOneIsCut) {
  v1::TrainerExited exited =
      ExitOf(Start("i=0; while [ $i -lt 30 ]; do echo $i; i=$((i+1)); done; head -c 5000 /dev/zero | tr '\\0' x"));

  ASSERT_THAT(exited.last_lines(), SizeIs(20));
  EXPECT_EQ(exited.last_lines(0), "11");
  EXPECT_EQ(exited.last_lines(18), "29");
  EXPECT_EQ(exited.last_lines(19), std::string(shim::kLastLineBytes, 'x'));
}

TEST_F(ShimTest, LastLines_HaveTheLastTextOfAProgressBar) {
  v1::TrainerExited exited = ExitOf(Start("printf 'load\\r\\r\\n\\r 0%%\\r50%%\\r99%%\\ndone\\n'"));

  EXPECT_THAT(exited.last_lines(), ElementsAre("load", "99%", "done"));
}

TEST_F(ShimTest, OutputThatIsNotText_ArrivesAsValidUtf8) {
  v1::TrainerExited exited = ExitOf(Start("printf 'a\\377b\\000c\\n'"));

  EXPECT_THAT(exited.last_lines(), ElementsAre("a\xef\xbf\xbd"
                                               "b c"));
}

TEST_F(ShimTest, GrandchildThatHoldsThePipes_IsKilledWithoutDelay) {
  absl::Time start = absl::Now();

  v1::TrainerExited exited = ExitOf(Start("sleep 1000 & (setsid sleep 1001 &); echo $!; exit 3"));

  EXPECT_EQ(exited.code(), 3);
  EXPECT_LT(absl::Now() - start, kPatience);
  EXPECT_TRUE(IsGone(atoi(exited.last_lines(0).c_str())));
}

TEST_F(ShimTest, UnrelatedProcessThatHoldsThePipes_DelaysTheRecordBriefly) {
  pid_t shim = Start("exec sleep 100");
  agent::PidRecord pids = Pids();
  // A process that is not a descendant of the trainer opens its standard output.
  int pipe = open(absl::StrCat("/proc/", pids.trainer.pid, "/fd/1").c_str(), O_WRONLY);
  ASSERT_GE(pipe, 0) << strerror(errno);
  absl::Time start = absl::Now();

  kill(-pids.trainer.pid, SIGKILL);
  v1::TrainerExited exited = ExitOf(shim);

  close(pipe);
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_LT(absl::Now() - start, kPatience);
}

TEST_F(ShimTest, KilledShim_KillsItsTrainerToo) {
  pid_t shim = Start("exec sleep 100");
  agent::PidRecord pids = Pids();

  kill(shim, SIGKILL);

  EXPECT_TRUE(WaitUntil([&] {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return IsGone(pids.trainer.pid);
  }));
  EXPECT_TRUE(agent::CloseUnlessShimRuns(folder_));
  EXPECT_EQ(agent::ReadExit(folder_)->cause(), v1::TrainerExited::CAUSE_LOST);
}

TEST_F(ShimTest, Sigterm_ReachesTheTrainer) {
  pid_t shim = Start("trap 'echo stopping; exit 5' TERM; echo up; while true; do sleep 0.01; done");
  ASSERT_TRUE(WaitUntil([&] { return Output("stdout.log") == "up\n"; }));

  kill(shim, SIGTERM);
  v1::TrainerExited exited = ExitOf(shim);

  EXPECT_EQ(exited.code(), 5);
  EXPECT_THAT(exited.last_lines(), ElementsAre("up", "stopping"));
}

TEST_F(ShimTest, AProgramOfAShellThatSigtermEnds_HasTheGracePeriod) {
  const std::string release = root_ / "release";
  const std::string program = absl::StrCat("trap \"while ! test -e ", release,
                                           "; do sleep 0.01; done; echo saved; exit 0\" TERM; echo up; "
                                           "while true; do sleep 0.01; done");
  pid_t shim = StartProgram({.program = "/bin/sh",
                             .arguments = {"sh", "-c", absl::StrCat("sh -c '", program, "'; true")},
                             .variables = {"PATH=/usr/bin:/bin"},
                             .log_bytes = 1 << 20,
                             .grace = absl::Seconds(30)});
  ASSERT_TRUE(WaitUntil([&] { return Output("stdout.log") == "up\n"; }));
  const pid_t shell = Pids().trainer.pid;

  kill(-shell, SIGTERM);
  EXPECT_TRUE(WaitUntil([&] {
    const std::string stat = ReadFile(absl::StrCat("/proc/", shell, "/stat"), 1024).value_or("");
    return stat.empty() || absl::StrContains(stat, ") Z ");
  }));
  std::ofstream(release) << "now";
  v1::TrainerExited exited = ExitOf(shim);

  EXPECT_EQ(exited.signal(), SIGTERM);
  EXPECT_THAT(exited.last_lines(), Contains("saved"));  // the shell may also report that `sleep` was terminated
}

TEST_F(ShimTest, EndOfTheLifeline_KillsTheTrainerImmediately) {
  int lifeline[2];
  ASSERT_EQ(pipe2(lifeline, 0), 0);
  fcntl(lifeline[1], F_SETFD, FD_CLOEXEC);
  pid_t shim = Start("trap '' TERM; sleep 100", 1 << 20, lifeline[0]);
  Pids();

  close(lifeline[1]);
  v1::TrainerExited exited = ExitOf(shim);

  close(lifeline[0]);
  EXPECT_EQ(exited.signal(), SIGKILL);
}

TEST_F(ShimTest, ReleasedLifeline_MayEndWithoutKillingTheTrainer) {
  int lifeline[2];
  ASSERT_EQ(pipe2(lifeline, 0), 0);
  fcntl(lifeline[1], F_SETFD, FD_CLOEXEC);
  pid_t shim = Start("trap 'exit 5' TERM; echo up; while true; do sleep 0.01; done", 1 << 20, lifeline[0]);
  ASSERT_TRUE(WaitUntil([&] { return Output("stdout.log") == "up\n"; }));

  EXPECT_TRUE(ReleaseLifeline(lifeline[1]));
  close(lifeline[1]);
  // Sent after the end of the lifeline: if that end killed the trainer, it would have been killed before this signal.
  kill(shim, SIGTERM);
  v1::TrainerExited exited = ExitOf(shim);

  EXPECT_EQ(exited.code(), 5);
  // The byte was not consumed: other holders of the lifeline can read it too.
  EXPECT_EQ(PeekLifeline(lifeline[0]), Lifeline::kReleased);
  close(lifeline[0]);
}

TEST_F(ShimTest, SecondShimInAFolder_StartsNoTrainer) {
  pid_t first = Start("echo started; exec sleep 100");
  agent::PidRecord pids = Pids();

  EXPECT_EQ(Wait(StartShim()), 2);
  kill(-pids.trainer.pid, SIGKILL);
  Wait(first);
  EXPECT_EQ(Wait(StartShim()), 2);

  EXPECT_EQ(Output("stdout.log"), "started\n");
}

TEST_F(ShimTest, FolderFoundWithoutAShim_StartsNoTrainerLater) {
  ASSERT_EQ(
      agent::MakeRankFolder(folder_, {.program = "/bin/true", .arguments = {"t"}, .variables = {}, .log_bytes = 65536}),
      absl::OkStatus());

  EXPECT_TRUE(agent::CloseUnlessShimRuns(folder_));

  EXPECT_EQ(Wait(StartShim()), 2);
  EXPECT_EQ(agent::ReadExit(folder_)->cause(), v1::TrainerExited::CAUSE_LOST);
}

TEST_F(ShimTest, RankFolder_IsCreatedOnce) {
  agent::LaunchRecord launch = {.program = "/bin/true", .arguments = {"t"}, .variables = {}, .log_bytes = 65536};
  ASSERT_EQ(agent::MakeRankFolder(folder_, launch), absl::OkStatus());

  EXPECT_TRUE(absl::IsAlreadyExists(agent::MakeRankFolder(folder_, launch)));
}

TEST_F(ShimTest, OutputThatTheDiskRefuses_IsDroppedAndCountedWhileTheTrainerContinues) {
  // A limit on file size refuses writes like a full disk, and needs no privileges.
  v1::TrainerExited exited =
      ExitOf(StartProgram({.program = "/bin/sh",
                           .arguments = {"sh", "-c", "head -c 3000000 /dev/zero; echo; echo done"},
                           .variables = {"PATH=/usr/bin:/bin"},
                           .log_bytes = 64 << 20}));
  EXPECT_EQ(exited.code(), 0);
  EXPECT_EQ(exited.message(), "");
  std::filesystem::remove_all(folder_);

  struct rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limited = {100'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limited);
  pid_t shim = Start("head -c 3000000 /dev/zero; echo; echo done", 64 << 20);
  setrlimit(RLIMIT_FSIZE, &before);
  exited = ExitOf(shim);

  EXPECT_EQ(exited.code(), 0);
  EXPECT_EQ(exited.last_lines(exited.last_lines_size() - 1), "done");
  EXPECT_THAT(exited.message(), HasSubstr("bytes of its output could not be written"));
}

}  // namespace
}  // namespace trainyard
