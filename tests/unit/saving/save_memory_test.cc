// Copies that outlive the process that made them, and the limit of bytes per second.
#include "worker/saving/save_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>

#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/recording_disk.h"
#include "tests/unit/checkpoint/testing.h"
#include "worker/saving/save_thread.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kElements = 40'000;

class SaveMemoryTest : public testing::Test {
 protected:
  SnapshotPlace Place() { return {.folder = memory_.path(), .job_id = "k3vq7a2p", .generation = 2, .rank = 1}; }
  std::string Path(char buffer) { return SnapshotPath(Place(), buffer); }

  // Two tensors whose values all equal the step.
  static std::vector<float> ValuesOf(uint64_t step) { return std::vector<float>(kElements, static_cast<float>(step)); }
  SaveTask TaskOf(uint64_t step, const std::vector<float>& values) {
    SaveTask task{.save = {.step = step, .generation = 2, .world_size = 2},
                  .rank = 1,
                  .folder = disk_folder_ / absl::StrCat("step-", step),
                  .snapshot_text = absl::StrCat("step ", step)};
    SaveTask::File file{.name = "shard-00001.safetensors"};
    for (const char* role : {"parameter", "exp_avg"}) {
      file.ranges.push_back(
          {.entry = {.tensor = {.name = "w", .role = role, .dtype = "F32", .shape = {kElements}}, .count = kElements},
           .bytes = reinterpret_cast<const char*>(values.data())});
    }
    task.files = {file};
    return task;
  }
  absl::Status Save(SaveThread& thread, uint64_t step) {
    const std::vector<float> values = ValuesOf(step);
    thread.Begin(TaskOf(step, values));
    thread.WaitForCopy();
    thread.AwaitEnd(absl::InfiniteDuration());
    return thread.ended()->status;
  }
  uint64_t CopyBytes() { return BytesFor(ValuesOf(0)); }
  uint64_t BytesFor(const std::vector<float>& values) { return 2 * AlignedInSnapshot(values.size() * sizeof(float)); }

  // The step of a whole snapshot, after checking every byte; none: the snapshot is not marked as whole.
  std::optional<uint64_t> WholeStep(char buffer) {
    auto snapshot = Snapshot::Open(Path(buffer));
    if (absl::IsUnavailable(snapshot.status()) || absl::IsNotFound(snapshot.status())) return std::nullopt;
    EXPECT_TRUE(snapshot.ok()) << "neither being written nor whole: " << snapshot.status();
    if (!snapshot.ok()) return std::nullopt;
    EXPECT_EQ((*snapshot)->Verify(), absl::OkStatus());
    const uint64_t step = (*snapshot)->part().save.step;
    EXPECT_EQ((*snapshot)->extra(), absl::StrCat("step ", step));
    EXPECT_THAT((*snapshot)->part().tensors, SizeIs(2));
    for (const ManifestTensor& tensor : (*snapshot)->part().tensors) {
      std::vector<float> values(kElements);
      EXPECT_EQ((*snapshot)->Read(tensor.pieces.at(0),
                                  {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)}),
                absl::OkStatus());
      EXPECT_EQ(values, ValuesOf(step)) << tensor.role;
    }
    return step;
  }

  TemporaryFolder disk_folder_, memory_;
};

TEST_F(SaveMemoryTest, CopiesAlternateBetweenBuffersAndOutliveTheThread) {
  {
    SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
    ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
    EXPECT_EQ(thread.reserved_bytes(), 2 * CopyBytes());
    for (uint64_t step : {5, 6, 7}) {
      ASSERT_EQ(Save(thread, step), absl::OkStatus());
      EXPECT_EQ(thread.ended()->snapshot, absl::OkStatus());
    }
  }

  EXPECT_EQ(WholeStep('a'), 7u);
  EXPECT_EQ(WholeStep('b'), 6u);
}

// As with parts, the indexes of all ranks together say where every element of the state is.
TEST_F(SaveMemoryTest, SnapshotIndexes_FormAManifest) {
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
  ASSERT_EQ(Save(thread, 5), absl::OkStatus());
  std::vector<TensorHeader> headers;
  const SaveTask task = TaskOf(5, {});
  for (const SaveRange& range : task.files[0].ranges) headers.push_back(range.entry.tensor);

  Manifest manifest;
  absl::Status assembled = AssembleManifest({(*Snapshot::Open(Path('a')))->part()}, headers, manifest);

  EXPECT_EQ(assembled, absl::OkStatus());
  EXPECT_THAT(manifest.tensors, SizeIs(2));
}

TEST_F(SaveMemoryTest, FilesOnDisk_AreTheSameAsWithoutSnapshots) {
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  ASSERT_EQ(Save(thread, 5), absl::OkStatus());
  const std::string shard = *ReadFile(disk_folder_ / "step-5/shard-00001.safetensors");
  const std::string part = *ReadFile(disk_folder_ / "step-5/part-00001.json");
  std::filesystem::remove_all(disk_folder_ / "step-5");

  ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
  ASSERT_EQ(Save(thread, 5), absl::OkStatus());

  EXPECT_EQ(*ReadFile(disk_folder_ / "step-5/shard-00001.safetensors"), shard);
  EXPECT_EQ(*ReadFile(disk_folder_ / "step-5/part-00001.json"), part);
}

TEST_F(SaveMemoryTest, FullDisk_LeavesSnapshotsWholeAndBothBuffersAreUsed) {
  FullDisk disk(1000);
  SaveThread thread(disk, Clock::GetSteadyClock(), 0);
  ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());

  EXPECT_TRUE(absl::IsResourceExhausted(Save(thread, 5)));
  EXPECT_EQ(WholeStep('a'), 5u);
  EXPECT_TRUE(absl::IsResourceExhausted(Save(thread, 6)));

  EXPECT_EQ(WholeStep('a'), 5u);
  EXPECT_EQ(WholeStep('b'), 6u);
}

// A save that is given up before it was copied must not be marked as whole.
TEST_F(SaveMemoryTest, CancelledCopy_IsNotMarkedAsWholeAndIsReplacedByTheNext) {
  const std::vector<float> values = ValuesOf(6);
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
  ASSERT_EQ(Save(thread, 5), absl::OkStatus());

  thread.Begin(TaskOf(6, values));
  thread.GiveUp(absl::DeadlineExceededError("it took too long"));
  thread.WaitForCopy();
  const std::optional<uint64_t> given_up = WholeStep('b');
  EXPECT_TRUE(!given_up.has_value() || *given_up == 6) << "the copy either finished first or does not exist";
  EXPECT_EQ(WholeStep('a'), 5u);

  uint64_t step = 7;
  while (!Save(thread, step).ok()) ++step;  // the writer may still be busy with the previous save
  EXPECT_EQ(std::max(WholeStep('a').value_or(0), WholeStep('b').value_or(0)), step);
}

TEST_F(SaveMemoryTest, DroppedSnapshots_AreRemovedAndSavesContinueWithoutThem) {
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
  ASSERT_EQ(Save(thread, 5), absl::OkStatus());

  thread.DropMemory();

  EXPECT_THAT(ListSnapshots(memory_.path(), "k3vq7a2p"), IsEmpty());
  EXPECT_EQ(thread.reserved_bytes(), 0u);
  EXPECT_EQ(Save(thread, 6), absl::OkStatus());
  EXPECT_THAT(ListSnapshots(memory_.path(), "k3vq7a2p"), IsEmpty());
}

TEST_F(SaveMemoryTest, FailedReservation_LeavesNothing) {
  auto existing = *SnapshotBuffer::Make(Path('b'), 100);
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);

  EXPECT_TRUE(absl::IsAlreadyExists(thread.ReserveShared(Place(), CopyBytes())));

  EXPECT_FALSE(std::filesystem::exists(Path('a')));
  EXPECT_EQ(thread.reserved_bytes(), 0u);
}

TEST_F(SaveMemoryTest, OlderGenerations_AreRemovedInTheBackground) {
  SnapshotPlace older = Place();
  older.generation = 1;
  older.rank = 3;
  *SnapshotBuffer::Make(SnapshotPath(older, 'a'), 100);
  {
    SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
    ASSERT_EQ(thread.ReserveShared(Place(), CopyBytes()), absl::OkStatus());
    thread.RemoveOlderSnapshots(Place());
    ASSERT_EQ(Save(thread, 5), absl::OkStatus());  // the writer removes the older snapshots first
  }

  EXPECT_THAT(ListSnapshots(memory_.path(), "k3vq7a2p"), SizeIs(2));
}

// Whenever the process is killed, one of the two buffers holds the newest step that was reported or the step after it,
// and a buffer that is marked as whole is whole.
TEST_F(SaveMemoryTest, ProcessKilledAtAnyTime_KeepsTheNewestWholeSnapshot) {
  for (int kill_after = 1; kill_after <= 40; ++kill_after) {
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    if (child == 0) {
      SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
      if (!thread.ReserveShared(Place(), CopyBytes()).ok()) _exit(1);
      for (uint8_t step = 1;; ++step) {
        if (!Save(thread, step).ok() || write(progress[1], &step, 1) != 1) _exit(1);
        std::filesystem::remove_all(disk_folder_ / absl::StrCat("step-", step));
      }
    }
    close(progress[1]);
    uint8_t step = 0;
    // The kill comes at varying times: during the next copy, seal or write.
    while (step < 1 + kill_after % 5 && read(progress[0], &step, 1) == 1) {
    }
    for (std::atomic<int> i = 0; i < kill_after * 20'000; ++i) {
    }
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the process ended on its own";
    while (read(progress[0], &step, 1) == 1) {
    }
    close(progress[0]);

    const uint64_t newest = std::max(WholeStep('a').value_or(0), WholeStep('b').value_or(0));
    EXPECT_GE(newest, step);
    EXPECT_LE(newest, step + 1u);
    for (const std::string& folder : {memory_.path(), disk_folder_.path()}) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) std::filesystem::remove_all(entry.path());
    }
  }
}

TEST(SaveMemoryPlanTest, AtMostHalfOfTheMemory_HoldsTwoCopiesOfAllRanks_OrOneCopy) {
  struct Row {
    const char* name;
    SaveMemoryFacts facts;
    bool shared, one_copy;
    const char* why;
  };
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const Row rows[] = {
      {"plenty",
       {.bytes = kGiB, .local_ranks = 2, .available_bytes = 16 * kGiB, .folder_bytes = 16 * kGiB},
       true,
       true,
       ""},
      {"memory for one copy each",
       {.bytes = kGiB, .local_ranks = 2, .available_bytes = 6 * kGiB, .folder_bytes = 16 * kGiB},
       false,
       true,
       "of memory are available"},
      {"memory for none",
       {.bytes = kGiB, .local_ranks = 2, .available_bytes = 4 * kGiB, .folder_bytes = 16 * kGiB},
       false,
       false,
       "of memory are available"},
      {"a container's /dev/shm",
       {.bytes = kGiB, .local_ranks = 1, .available_bytes = 64 * kGiB, .folder_bytes = 64 << 20},
       false,
       true,
       "67.1 MB are free in the daemon's folder for snapshots"},
      {"no folder",
       {.bytes = 1, .local_ranks = 1, .available_bytes = 64 * kGiB, .folder_bytes = -1},
       false,
       true,
       "no folder"},
      {"the available memory is unknown",
       {.bytes = kGiB, .local_ranks = 1, .available_bytes = 0, .folder_bytes = 4 * kGiB},
       true,
       true,
       ""},
  };
  for (const Row& row : rows) {
    const SaveMemoryPlan plan = PlanSaveMemory(row.facts);
    EXPECT_EQ(plan.shared, row.shared) << row.name;
    EXPECT_EQ(plan.one_copy, row.one_copy) << row.name;
    EXPECT_THAT(plan.why_not_shared, HasSubstr(row.why)) << row.name;
  }
}

TEST(SaveMemoryPlanTest, MissingFolder_HasNoFreeBytes) {
  TemporaryFolder folder;
  EXPECT_GT(FreeBytesOf(folder.path()), 0);
  EXPECT_LT(FreeBytesOf(folder / "missing"), 0);
  EXPECT_LT(FreeBytesOf(""), 0);
}

// With a clock that only the writer's own waits advance: the bytes handed to the disk never exceed the limit.
TEST_F(SaveMemoryTest, WritesKeepTheLimitOfBytesPerSecond) {
  constexpr uint64_t kBytesPerS = 100'000;
  SimulatedClock clock;
  const absl::Time began = clock.TimeNow();
  RecordingDisk disk;
  uint64_t written = 0;
  double max_excess = 0;
  disk.on_call = [&](const std::string& call) {
    if (!call.starts_with("append")) return absl::OkStatus();
    written += std::stoull(call.substr(7));
    const double allowed = absl::ToDoubleSeconds(clock.TimeNow() - began) * kBytesPerS;
    max_excess = std::max(max_excess, static_cast<double>(written) - allowed);
    return absl::OkStatus();
  };
  SaveThread thread(disk, clock, kBytesPerS, [&](absl::Duration wait) { clock.AdvanceTime(wait); });

  ASSERT_EQ(Save(thread, 5), absl::OkStatus());

  const double shard = static_cast<double>(std::filesystem::file_size(disk_folder_ / "step-5/shard-00001.safetensors"));
  EXPECT_GE(shard, 2 * kElements * sizeof(float));
  EXPECT_LE(max_excess, kBytesPerS / 4.0 + 4096)
      << "the bytes of a quarter of a second, and the small file that describes the part";
  EXPECT_GT(clock.TimeNow() - began, absl::Seconds((shard - kBytesPerS / 4.0) / kBytesPerS) - absl::Milliseconds(1));
  EXPECT_LT(clock.TimeNow() - began, absl::Seconds(shard / kBytesPerS) + absl::Milliseconds(1));
}

// With the limit the save would take days.
TEST_F(SaveMemoryTest, LiftByteLimit_EndsTheLimitOfTheSaveUnderWay) {
  const std::vector<float> values = ValuesOf(5);
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), /*bytes_per_s=*/1);

  thread.Begin(TaskOf(5, values));
  thread.LiftByteLimit();

  ASSERT_TRUE(thread.AwaitEnd(absl::InfiniteDuration()));
  EXPECT_EQ(thread.ended()->status, absl::OkStatus());
}

}  // namespace
}  // namespace trainyard
