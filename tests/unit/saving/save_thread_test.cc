// One rank's part, written while its state changes; and how rank 0 commits all parts, with a coordinator that grants,
// refuses or does not answer.
#include "worker/saving/save_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "worker/saving/commit_thread.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A disk that creates no file until it is released.
class StuckDisk final : public ForwardingDisk {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (stuck.exchange(false)) {
      reached.Notify();
      released.WaitForNotification();
    }
    return Real().Create(path);
  }

  std::atomic<bool> stuck = true;
  absl::Notification reached, released;
};

// A disk that removes nothing until it is released.
class StuckRemoval final : public ForwardingDisk {
 public:
  absl::Status RemoveAll(const std::string& path) override {
    if (stuck.exchange(false)) {
      reached.Notify();
      released.WaitForNotification();
    }
    return Real().RemoveAll(path);
  }

  std::atomic<bool> stuck = true;
  absl::Notification reached, released;
};

// A disk that calls a function once, when something is removed.
class RemovalObserver final : public ForwardingDisk {
 public:
  absl::Status RemoveAll(const std::string& path) override {
    if (on_removal != nullptr) std::exchange(on_removal, nullptr)();
    return Real().RemoveAll(path);
  }

  std::function<void()> on_removal;
};

class SaveTest : public testing::Test {
 protected:
  static constexpr uint64_t kWorld = 2;

  SaveKey Key(uint64_t step) { return {.step = step, .generation = 2, .world_size = kWorld}; }
  std::string Partial(uint64_t step) { return PartialPath(folder_.path(), step, 2); }

  // Rank `rank` writes the first or second half of each tensor, and compares no replicas.
  SaveTask TaskOf(SmallState& state, uint64_t step, uint64_t rank, bool copies = true) {
    SaveTask task{.save = Key(step), .rank = rank, .folder = Partial(step), .needs_copy = copies};
    SaveTask::File file{.name = ShardName(rank)};
    for (const TensorBytes& tensor : state.tensors()) {
      const uint64_t half = tensor.bytes.size() / 8;
      file.ranges.push_back(
          {.entry = {.tensor = {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape},
                     .first = rank * half,
                     .count = half},
           .bytes = tensor.bytes.data() + rank * half * 4});
    }
    task.files = {file};
    return task;
  }
  std::vector<TensorHeader> Headers(SmallState& state) {
    std::vector<TensorHeader> headers;
    for (const TensorBytes& t : state.tensors()) {
      headers.push_back({.name = t.name, .role = t.role, .dtype = t.dtype, .shape = t.shape});
    }
    return headers;
  }
  void WriteAll(SmallState& state, uint64_t step) {
    for (uint64_t rank = 0; rank < kWorld; ++rank) {
      SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
      thread.Begin(TaskOf(state, step, rank));
      thread.AwaitEnd(absl::InfiniteDuration());
      ASSERT_TRUE(thread.ended()->status.ok()) << thread.ended()->status;
    }
  }
  CommitTask CommitOf(SmallState& state, uint64_t step) {
    Manifest head = SmallManifest(step);
    return {.save = Key(step), .tensors = Headers(state), .head = head, .began = Clock::GetSteadyClock().TimeNow()};
  }
  std::unique_ptr<CommitThread> NewCommits(FileSystem& disk = FileSystem::Real(), const Retention& retention = {}) {
    return std::make_unique<CommitThread>(
        CommitThread::Deps{.run_folder = folder_.path(),
                           .generation = 2,
                           .retention = retention,
                           .file_system = disk,
                           .link = link_,
                           .clock = Clock::GetSteadyClock(),
                           .check_fence = [this] { return fence_; },
                           .describe_data = [](ManifestData& data) { return data.content_hash = "abc", "a line"; },
                           .part_patience = absl::ZeroDuration()});
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryFolder folder_;
  FakeLink link_;
  absl::Status fence_;
};

// A copy of weights in a narrow type may overflow; the state it was made from is intact.
TEST_F(SaveTest, DerivedFileWithInfiniteValues_IsReportedAndTheStateIsNotMarked) {
  SmallState state(1);
  SaveTask task = TaskOf(state, 5, 0);
  const std::string infinite = std::string("\x00\x7c", 2) + std::string("\x00\x00", 2);
  const TensorHeader header{.name = "wte.weight", .role = kCopyRole, .dtype = "F16", .shape = {2}};
  task.files.push_back(
      {.name = "weights-fp16.safetensors",
       .ranges = {{.entry = {.tensor = header, .count = 2}, .bytes = infinite.data(), .is_stable = true}},
       .derived = true});
  const std::string folder = task.folder;
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);

  thread.Begin(std::move(task));
  thread.AwaitEnd(absl::InfiniteDuration());

  ASSERT_TRUE(thread.ended()->status.ok()) << thread.ended()->status;
  EXPECT_EQ(thread.ended()->beyond_range, "copy 'wte.weight'");
  auto part = ReadCheckpointPart(folder, 0, Key(5));
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->nonfinite, IsEmpty());
  EXPECT_THAT(part->files, SizeIs(2));
}

TEST_F(SaveTest, WrittenState_IsTheStateBeforeWaitForCopyReturned) {
  for (bool copies : {true, false}) {
    SmallState state(1), same(1);
    std::vector<std::string> now;  // changed by the loop
    for (const TensorBytes& tensor : state.tensors()) now.emplace_back(tensor.bytes);
    const uint64_t step = copies ? 5 : 6;
    for (uint64_t rank = 0; rank < kWorld; ++rank) {
      SaveTask task = TaskOf(state, step, rank, copies);
      for (size_t i = 0; i < now.size(); ++i)
        task.files[0].ranges[i].bytes = now[i].data() + rank * (now[i].size() / 2);
      SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
      std::vector<std::string> before = now;

      thread.Begin(std::move(task));
      thread.WaitForCopy();
      if (!copies) thread.AwaitEnd(absl::InfiniteDuration());
      for (std::string& bytes : now) bytes.assign(bytes.size(), 'x');

      ASSERT_TRUE(thread.AwaitEnd(absl::InfiniteDuration()));
      ASSERT_TRUE(thread.ended()->status.ok()) << thread.ended()->status;
      now = before;
    }
    auto commits = NewCommits();
    commits->Commit(CommitOf(same, step));
    ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

    auto checkpoint = Checkpoint::Open(folder_ / StepFolderName(step));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const TensorBytes& tensor : same.tensors()) {
      std::string out(tensor.bytes.size(), '\0');
      ASSERT_TRUE(
          (*checkpoint)
              ->ReadTensor(tensor.role, tensor.name, "F32", tensor.shape, absl::MakeSpan(out.data(), out.size()))
              .ok());
      EXPECT_EQ(out, tensor.bytes);
    }
  }
}

TEST_F(SaveTest, FullDisk_FailsTheSaveAndLeavesNothing) {
  SmallState state(1);
  FullDisk disk(600);
  SaveThread thread(disk, Clock::GetSteadyClock(), 0);

  thread.Begin(TaskOf(state, 5, 0));
  thread.AwaitEnd(absl::InfiniteDuration());

  EXPECT_TRUE(absl::IsResourceExhausted(thread.ended()->status)) << thread.ended()->status;
  EXPECT_TRUE(std::filesystem::is_empty(Partial(5)));
  disk.set_free_bytes(1 << 20);
  thread.Begin(TaskOf(state, 6, 0));
  thread.AwaitEnd(absl::InfiniteDuration());
  EXPECT_TRUE(thread.ended()->status.ok()) << thread.ended()->status;
}

TEST_F(SaveTest, SaveAfterANewerFence_CreatesNoFolder) {
  SmallState state(1);
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  SaveTask task = TaskOf(state, 5, 1);
  task.may_write = [] { return absl::AbortedError("generation 3 has the folder"); };

  thread.Begin(std::move(task));
  thread.AwaitEnd(absl::InfiniteDuration());

  EXPECT_TRUE(absl::IsAborted(thread.ended()->status));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SaveTest, HangingDisk_IsGivenUpAndTheNextSaveFailsImmediately) {
  SmallState state(1);
  StuckDisk disk;
  SaveThread thread(disk, Clock::GetSteadyClock(), 0);
  thread.Begin(TaskOf(state, 5, 0));
  disk.reached.WaitForNotification();
  EXPECT_FALSE(thread.ended().has_value());

  thread.WaitForCopy();  // the state was copied: the loop continues
  thread.GiveUp(absl::DeadlineExceededError("it took too long"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(thread.ended()->status));
  thread.Begin(TaskOf(state, 6, 0));
  ASSERT_TRUE(thread.ended().has_value());
  EXPECT_THAT(thread.ended()->status.message(), HasSubstr("is still blocked by the disk"));
  thread.WaitForCopy();

  disk.released.Notify();
  // Saves work again once the disk has answered; until then each try fails immediately.
  for (uint64_t step = 7;; ++step) {
    thread.Begin(TaskOf(state, step, 0));
    thread.AwaitEnd(absl::InfiniteDuration());
    if (thread.ended()->status.ok()) break;
    EXPECT_TRUE(absl::IsUnavailable(thread.ended()->status)) << thread.ended()->status;
  }
}

TEST_F(SaveTest, Commit_ReportsReadyThenSavedAfterTheGrant) {
  SmallState state(1);
  WriteAll(state, 5);
  auto commits = NewCommits();

  commits->Commit(CommitOf(state, 5));
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  ASSERT_THAT(link_.facts(), SizeIs(2));
  SaveReadyFact ready = std::get<SaveReadyFact>(link_.facts()[0]);
  SavedFact saved = std::get<SavedFact>(link_.facts()[1]);
  EXPECT_EQ(ready.manifest_hash, saved.manifest_hash);
  EXPECT_EQ(saved.path, folder_ / "step-00000005");
  EXPECT_THAT(Names(), ElementsAre("step-00000005"));
  auto checkpoint = Checkpoint::Open(saved.path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->manifest_hash(), saved.manifest_hash);
  EXPECT_EQ((*checkpoint)->manifest().data.content_hash, "abc");
  EXPECT_THAT(commits->TakeLines(), ElementsAre("a line", HasSubstr("saved step 5 in ")));
  EXPECT_EQ(commits->newest_complete(), 5u);
}

TEST_F(SaveTest, WithoutAnAnswerOfTheCoordinator_TwoCheckpointsStayComplete_AndAThirdReplacesTheOldest) {
  SmallState state(1);
  link_.set_answer_grant([](auto, auto, auto) { return absl::DeadlineExceededError("no answer"); });
  auto commits = NewCommits();
  for (uint64_t step : {5, 6, 7}) {
    WriteAll(state, step);
    commits->Commit(CommitOf(state, step));
    while (commits->newest_complete() < step) commits->Drain(absl::Milliseconds(1));
  }

  EXPECT_FALSE(commits->Drain(absl::ZeroDuration()));
  std::vector<SaveFailedFact> failed = link_.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].step, 5u);
  EXPECT_TRUE(failed[0].withdrawn);
  EXPECT_EQ(commits->num_failed(), 0u) << "a withdrawn checkpoint must not count as a failed commit";
  EXPECT_THAT(Names(), ElementsAre("step-00000006.g2.partial", "step-00000007.g2.partial"));
  EXPECT_TRUE(Checkpoint::Open(Partial(7)).ok()) << "only the final name may be missing";

  // At the end of a job, complete checkpoints get their final names without a grant.
  EXPECT_TRUE(commits->Drain(absl::InfiniteDuration(), /*without_grant=*/true));
  EXPECT_THAT(Names(), ElementsAre("step-00000006", "step-00000007"));
  EXPECT_THAT(link_.FactsOf<SavedFact>(), SizeIs(2));
}

// While the coordinator is away, the best checkpoint and milestones are not replaced, because retention keeps them.
TEST_F(SaveTest, WithoutAnAnswerOfTheCoordinator_CheckpointsThatAreKeptForEverStay) {
  const Retention best{.keep = 1, .keep_best = true}, milestones{.keep = 1, .keep_every = 5};
  for (const Retention& retention : {best, milestones}) {
    SmallState state(1);
    link_.set_answer_grant([](auto, auto, auto) { return absl::DeadlineExceededError("no answer"); });
    auto commits = NewCommits(FileSystem::Real(), retention);
    for (uint64_t step : {5, 6, 7, 8}) {
      WriteAll(state, step);
      CommitTask task = CommitOf(state, step);
      task.head.evaluation = ManifestEvaluation{.loss = static_cast<double>(step), .tokens = 64};
      commits->Commit(std::move(task));
      while (commits->newest_complete() < step) commits->Drain(absl::Milliseconds(1));
    }

    EXPECT_THAT(Names(), ElementsAre("step-00000005.g2.partial", "step-00000008.g2.partial"));
    commits.reset();
    for (uint64_t step : {5, 8}) std::filesystem::remove_all(Partial(step));
  }
}

TEST_F(SaveTest, SlowDisk_MakesTheLoopWaitBeforeAThirdSave) {
  SmallState state(1);
  for (uint64_t step : {5, 6}) WriteAll(state, step);
  StuckDisk disk;
  auto commits = NewCommits(disk);
  EXPECT_TRUE(commits->AwaitQueueSpace(absl::ZeroDuration()));

  commits->Commit(CommitOf(state, 5));
  disk.reached.WaitForNotification();  // its manifest is about to be written
  EXPECT_TRUE(commits->AwaitQueueSpace(absl::ZeroDuration()));
  commits->Commit(CommitOf(state, 6));
  EXPECT_FALSE(commits->AwaitQueueSpace(absl::ZeroDuration()));

  disk.released.Notify();
  EXPECT_TRUE(commits->AwaitQueueSpace(absl::InfiniteDuration()));
}

TEST_F(SaveTest, SlowRemoval_IsNotCountedAsACommit) {
  SmallState state(1);
  for (uint64_t step : {5, 6, 7}) WriteAll(state, step);
  StuckRemoval disk;
  auto commits = NewCommits(disk);
  commits->Discard(Key(5));
  disk.reached.WaitForNotification();

  commits->Commit(CommitOf(state, 6));
  EXPECT_TRUE(commits->AwaitQueueSpace(absl::ZeroDuration()));
  commits->Commit(CommitOf(state, 7));
  EXPECT_FALSE(commits->AwaitQueueSpace(absl::ZeroDuration()));

  disk.released.Notify();
  EXPECT_TRUE(commits->AwaitQueueSpace(absl::InfiniteDuration()));
}

TEST_F(SaveTest, RefusedCheckpoint_IsRemovedAndReported) {
  SmallState state(1);
  WriteAll(state, 5);
  link_.set_answer_grant([](auto, auto, auto) { return absl::FailedPreconditionError("step 9 is granted already"); });
  auto commits = NewCommits();

  commits->Commit(CommitOf(state, 5));
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  ASSERT_THAT(link_.FactsOf<SaveFailedFact>(), SizeIs(1));
  EXPECT_THAT(link_.FactsOf<SaveFailedFact>()[0].message, HasSubstr("step 9 is granted already"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SaveTest, RefusedGrant_DoesNotConcernANewerCompleteCheckpoint) {
  SmallState state(1);
  std::atomic<bool> answers = false;
  link_.set_answer_grant([&](uint64_t step, absl::string_view, absl::Duration) -> absl::Status {
    if (!answers) return absl::DeadlineExceededError("no answer");
    return step == 5 ? absl::FailedPreconditionError("step 5 has other contents") : absl::OkStatus();
  });
  auto commits = NewCommits();
  for (uint64_t step : {5, 6}) {
    WriteAll(state, step);
    commits->Commit(CommitOf(state, step));
    while (commits->newest_complete() < step) commits->Drain(absl::Milliseconds(1));
  }

  answers = true;
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  EXPECT_EQ(commits->newest_complete(), 6u);
  EXPECT_EQ(commits->newest_named(), 6u);
  EXPECT_THAT(Names(), ElementsAre("step-00000006"));
}

TEST_F(SaveTest, CommitAfterANewerFence_RenamesNothing_RemovesNothing_AndReportsNothing) {
  SmallState state(1);
  WriteAll(state, 5);
  absl::Notification requested, answer;
  link_.set_answer_grant([&](auto, auto, auto) {
    requested.Notify();
    answer.WaitForNotification();
    return absl::OkStatus();
  });
  auto commits = NewCommits();
  commits->Commit(CommitOf(state, 5));
  requested.WaitForNotification();
  fence_ = absl::AbortedError("generation 3 has the folder");
  answer.Notify();

  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  EXPECT_THAT(Names(), ElementsAre("step-00000005.g2.partial"));
  EXPECT_THAT(link_.FactsOf<SavedFact>(), IsEmpty());
  EXPECT_THAT(link_.FactsOf<SaveFailedFact>(), IsEmpty());
}

TEST_F(SaveTest, MissingPart_FailsTheSaveWithItsNameAndRemovesTheFolder) {
  SmallState state(1);
  WriteAll(state, 5);
  std::filesystem::remove(JoinPath(Partial(5), PartName(1)));
  auto commits = NewCommits();

  commits->Commit(CommitOf(state, 5));
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  ASSERT_THAT(link_.FactsOf<SaveFailedFact>(), SizeIs(1));
  EXPECT_THAT(link_.FactsOf<SaveFailedFact>()[0].message, HasSubstr("part-00001.json"));
  EXPECT_EQ(commits->num_failed(), 1u);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SaveTest, OldCheckpoints_AreRemovedWhenANewerOneIsConfirmed) {
  SmallState state(1);
  auto commits = NewCommits(FileSystem::Real(), {.keep = 2});
  link_.set_acknowledges(false);
  // All parts are written before the first commit, which must leave the parts of later saves alone.
  for (uint64_t step : {5, 6, 7}) WriteAll(state, step);
  for (uint64_t step : {5, 6, 7}) commits->Commit(CommitOf(state, step));
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));
  commits->PruneConfirmed();
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));
  EXPECT_THAT(Names(), SizeIs(3));

  link_.set_acknowledges(true);
  commits->PruneConfirmed();
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  EXPECT_THAT(Names(), ElementsAre("step-00000006", "step-00000007"));
  EXPECT_EQ(commits->unconfirmed_fact(), 0u);
}

TEST_F(SaveTest, GenerationThatIsFencedOffWhileItRemovesCheckpoints_LeavesTheSavesOfTheLaterGenerationAlone) {
  SmallState state(1);
  RemovalObserver disk;
  auto commits = NewCommits(disk, {.keep = 1});
  for (uint64_t step : {5, 6}) WriteAll(state, step);
  for (uint64_t step : {5, 6}) commits->Commit(CommitOf(state, step));
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));
  disk.on_removal = [this] {
    std::filesystem::create_directory(PartialPath(folder_.path(), 9, /*generation=*/3));
    fence_ = absl::AbortedError("the folder belongs to generation 3 now");
  };

  commits->PruneConfirmed();
  ASSERT_TRUE(commits->Drain(absl::InfiniteDuration()));

  EXPECT_THAT(Names(), ElementsAre("step-00000006", "step-00000009.g3.partial"));
}

}  // namespace
}  // namespace trainyard
