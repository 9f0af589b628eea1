// What a process table does with rank folders that exist already. The shims are real.
#include "worker/agent/process_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/rank_folder.h"
#include "worker/shim/process.h"

namespace trainyard::agent {
namespace {

class ProcessTableTest : public ::testing::Test {
 protected:
  ~ProcessTableTest() override {
    if (child_.pid > 0 && shim::StartTime(child_.pid) == child_.start) kill(child_.pid, SIGKILL);
  }

  std::unique_ptr<ProcessTable> MakeTable() {
    ProcessTableOptions options;
    options.ranks = ranks_.path();
    options.shim = JoinPath(std::filesystem::path(BinaryFolder()).parent_path().string(), "trainyard-shim");
    return std::make_unique<ProcessTable>(std::move(options), [this](Event event) {
      absl::MutexLock lock(&mu_);
      if (const auto* ended = std::get_if<ProcessEnded>(&event)) exits_.push_back(ended->exited);
      if (const auto* found = std::get_if<ProcessFound>(&event)) found_.push_back(*found);
    });
  }

  // Also reaps the children of this process, to which processes belong whose parent was killed.
  static bool AwaitThat(const std::function<bool()>& condition) {
    for (absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end; absl::SleepFor(absl::Milliseconds(2))) {
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (condition()) return true;
    }
    return false;
  }
  static bool AwaitEndOf(pid_t pid) {
    return AwaitThat([pid] { return shim::StartTime(pid) == 0; });
  }

  // Makes a table that starts a shell with `script`, and waits until the script has printed a line. Returns null if it
  // printed none in time.
  std::unique_ptr<ProcessTable> StartShell(uint32_t rank, const char* script) {
    v1::JobSpec spec;
    for (const char* argument : {"/bin/sh", "-c", script}) {
      spec.mutable_command()->add_argv(argument);
      spec.mutable_command()->mutable_check()->add_argv(argument);
    }
    start_ = {};
    StartProcess& start = start_;
    start.desired.mutable_key()->set_job_id("job23456");
    start.desired.mutable_key()->set_generation(1);
    start.desired.mutable_key()->set_rank(rank);
    start.desired.set_spec(spec.SerializeAsString());
    start.master = "127.0.0.1:29500";
    id_ = FromProto(start.desired.key());
    folder_ = JoinPath(ranks_.path(), FolderName(id_));
    std::unique_ptr<ProcessTable> table = MakeTable();
    table->FindAll();
    table->Start(start);
    return AwaitThat([&] { return ReadPids(folder_).ok() && Output().ends_with('\n'); }) ? std::move(table) : nullptr;
  }
  std::string Output() const { return ReadFile(JoinPath(folder_, "stdout.log")).value_or(""); }

  // A table starts a shell, which starts a child. Then the table is destroyed, and the shim is killed, with which the
  // kernel kills the shell. The child, `child_`, continues to run.
  void LeaveChildOfKilledShell(uint32_t rank) {
    std::unique_ptr<ProcessTable> table = StartShell(rank, "sleep 1000 & echo $!; wait");
    ASSERT_NE(table, nullptr);
    child_.pid = atoi(Output().c_str());
    child_.start = shim::StartTime(child_.pid);
    table = nullptr;

    const PidRecord pids = *ReadPids(folder_);
    kill(pids.shim.pid, SIGKILL);

    ASSERT_TRUE(AwaitEndOf(pids.shim.pid) && AwaitEndOf(pids.trainer.pid));
    ASSERT_NE(shim::StartTime(child_.pid), 0u) << "the child must survive the shim, or the test shows nothing";
  }

  const TemporaryFolder ranks_;
  StartProcess start_ = {};  // of StartShell
  TrainerId id_;
  std::string folder_;
  ProcessId child_;
  absl::Mutex mu_;
  std::vector<v1::TrainerExited> exits_ ABSL_GUARDED_BY(mu_);
  std::vector<ProcessFound> found_ ABSL_GUARDED_BY(mu_);
};

TEST_F(ProcessTableTest, ChildOfARankWhoseShimWasKilledWithoutADaemon_IsEndedByTheNextDaemon) {
  ASSERT_NO_FATAL_FAILURE(LeaveChildOfKilledShell(0));

  std::unique_ptr<ProcessTable> next = MakeTable();
  next->FindAll();

  EXPECT_TRUE(AwaitEndOf(child_.pid));
  absl::MutexLock lock(&mu_);
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].cause(), v1::TrainerExited::CAUSE_LOST);
}

TEST_F(ProcessTableTest, ChildOfACheckWhoseShimWasKilledWithoutADaemon_IsEndedByTheNextDaemon) {
  ASSERT_NO_FATAL_FAILURE(LeaveChildOfKilledShell(kCheckRank));

  std::unique_ptr<ProcessTable> next = MakeTable();
  next->FindAll();

  EXPECT_TRUE(AwaitEndOf(child_.pid));
  EXPECT_FALSE(FileExists(folder_));
}

TEST_F(ProcessTableTest, ACommandThatWasEndedWithSigterm_IsFoundAsSuchByTheNextDaemon) {
  std::unique_ptr<ProcessTable> table = StartShell(0, "trap 'exit 0' TERM; sleep 1000 & echo ready; wait");
  ASSERT_NE(table, nullptr);
  table->Signal(id_, SIGTERM, /*to_group=*/true);
  ASSERT_TRUE(AwaitThat([this] { return ReadExit(folder_).ok(); }));
  table = nullptr;

  std::unique_ptr<ProcessTable> next = MakeTable();
  next->FindAll();

  absl::MutexLock lock(&mu_);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_TRUE(found_[0].stopped);
  ASSERT_FALSE(exits_.empty());
  EXPECT_EQ(exits_.back().cause(), v1::TrainerExited::CAUSE_EXIT) << "the shell exits with 0";
}

TEST_F(ProcessTableTest, RankThatHasRunHereBefore_IsNotStartedAgain_AndTheNextGenerationMayBeStarted) {
  std::unique_ptr<ProcessTable> table = StartShell(0, "echo ready");
  ASSERT_NE(table, nullptr);
  const auto exits = [this] {
    absl::MutexLock lock(&mu_);
    return exits_.size();
  };
  ASSERT_TRUE(AwaitThat([&] { return exits() == 1; }));

  table->Start(start_);

  ASSERT_TRUE(AwaitThat([&] { return exits() == 2; }));
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(exits_[1].cause(), v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_TRUE(exits_[1].may_pass()) << exits_[1].message();
  EXPECT_EQ(Output(), "ready\n");
}

TEST_F(ProcessTableTest, PidsWrittenBeforeTheHostStarted_EndNoProcess) {
  ASSERT_NO_FATAL_FAILURE(LeaveChildOfKilledShell(0));
  std::filesystem::last_write_time(JoinPath(folder_, "pid"),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 365 * 20));

  std::unique_ptr<ProcessTable> next = MakeTable();
  next->FindAll();

  EXPECT_NE(shim::StartTime(child_.pid), 0u);
  absl::MutexLock lock(&mu_);
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].cause(), v1::TrainerExited::CAUSE_LOST);
}

}  // namespace
}  // namespace trainyard::agent
