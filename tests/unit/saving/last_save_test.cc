// The save after a job's last step: the job succeeds only if its checkpoint exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "common/clock.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/run.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kSteps = 3;
constexpr int64_t kEnoughBytes = int64_t{1} << 40;

class LastSaveTest : public SmallJobTest {
 protected:
  StartOrder Order(double retry_s) {
    StartOrder order = SmallOrder("run", kSteps);
    order.config.batch_global = 4;
    order.config.batch_micro = 2;
    order.config.checkpoint_last_save_retry_s = retry_s;
    return order;
  }

  // `on_wait`: called with the number of the wait while rank 0 waits for the next try.
  TrainerExit Run(const StartOrder& order, FakeLink& link, FileSystem& disk, std::function<void(int)> on_wait) {
    int waits = 0;
    return RunRank(order, {.link = link,
                           .file_system = disk,
                           .log = log_,
                           .must_leave = [this] { return leave_.load(); },
                           .clock = clock_,
                           .wait =
                               [&](absl::Duration wait) {
                                 clock_.AdvanceTime(wait);
                                 on_wait(++waits);
                               }});
  }

  std::vector<std::string> StepNames() {
    std::vector<std::string> names = *ListNames(folder_ / "run");
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("step-"); });
    return names;
  }

  SimulatedClock clock_;
  std::atomic<bool> leave_ = false;
  std::ostringstream log_;
};

// Fails the first `refused_renames` renames, or removes the run folder at the first save, as another process might.
class InterferingDisk final : public ForwardingDisk {
 public:
  absl::Status MakeFolder(const std::string& path) override {
    if (!remove_at_save.empty()) std::filesystem::remove_all(std::exchange(remove_at_save, ""));
    return Real().MakeFolder(path);
  }
  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    if (refused_renames-- > 0) return ErrnoStatus(EROFS, absl::StrCat("cannot rename ", from));
    return Real().RenameOrExchange(from, to);
  }

  std::string remove_at_save;
  int refused_renames = 0;
};

// Writes no manifest until `released`.
class SlowManifestDisk final : public ForwardingDisk {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (absl::EndsWith(path, kManifestName)) {
      if (!reached.HasBeenNotified()) reached.Notify();
      released.WaitForNotification();
    }
    return ForwardingDisk::Create(path);
  }

  absl::Notification reached, released;
};

// The new fence has the attributes of the earlier one, as on a network file system whose client still has these in its
// cache.
TEST_F(LastSaveTest, FenceOfALaterGenerationThatStatDoesNotShow_PreventsTheNameOfTheCheckpoint) {
  const std::string fence = folder_ / "run/.fence";
  FakeLink link;
  link.set_answer_grant([&](uint64_t, absl::string_view, absl::Duration) {
    const std::filesystem::file_time_type time = std::filesystem::last_write_time(fence);
    std::ofstream(fence) << "{\"job\":\"abcdefgh\",\"generation\":2}\n";
    std::filesystem::last_write_time(fence, time);
    return absl::OkStatus();
  });

  EXPECT_EQ(Run(Order(600), link, FileSystem::Real(), [](int) {}), kExitAborted) << log_.str();

  EXPECT_THAT(StepNames(), ElementsAre("step-00000003.g1.partial"));
  EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(0));
}

TEST_F(LastSaveTest, FullDisk_RetriesUntilThereIsSpaceAndReportsEachFailure) {
  FakeLink link;
  FullDisk disk(1000);

  ASSERT_EQ(Run(Order(600), link, disk, [&](int waits) { disk.set_free_bytes(waits < 4 ? 1000 : kEnoughBytes); }),
            kExitDone);

  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  EXPECT_GE(failed.size(), 2u) << log_.str();
  EXPECT_THAT(failed, Each(AllOf(Field(&SaveFailedFact::will_retry, true), Field(&SaveFailedFact::step, kSteps))));
  EXPECT_THAT(failed[0].message, AllOf(HasSubstr("rank 0 on w1: cannot write " + (folder_ / "run")),
                                       HasSubstr("No space left"), HasSubstr(" bytes free")));
  EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(1));
  EXPECT_EQ(link.FactsOf<FinishedFact>().at(0).unsaved, "");
  EXPECT_THAT(StepNames(), ElementsAre("step-00000003"));
  EXPECT_TRUE(Checkpoint::Open(folder_ / "run/step-00000003").ok());
}

TEST_F(LastSaveTest, DiskThatStaysFull_EndsUnsavedWhenTheTimeIsOverAndLeavesNoPartialFolder) {
  FakeLink link;
  FullDisk disk(1000);
  const absl::Time began = clock_.TimeNow();

  ASSERT_EQ(Run(Order(50), link, disk, [&](int) { disk.set_free_bytes(1000); }), kExitDone);

  EXPECT_EQ(clock_.TimeNow() - began, absl::Seconds(50));
  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(7)) << "after 0, 1, 3, 7, 15, 31 and 50 s";
  EXPECT_TRUE(failed[5].will_retry);
  EXPECT_FALSE(failed[6].will_retry);
  EXPECT_THAT(link.FactsOf<FinishedFact>().at(0).unsaved,
              AllOf(HasSubstr("rank 0 on w1: cannot write "), HasSubstr("No space left")));
  EXPECT_THAT(StepNames(), SizeIs(0));
}

TEST_F(LastSaveTest, RankThatMustLeave_EndsTheRetries) {
  FakeLink link;
  FullDisk disk(1000);

  ASSERT_EQ(Run(Order(1e9), link, disk, [&](int waits) { leave_ = waits == 3; }), kExitDone);

  EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(0));
  EXPECT_EQ(link.FactsOf<FinishedFact>().at(0).unsaved, "") << "the next generation saves this step";
}

TEST_F(LastSaveTest, CheckpointThatCannotBeRenamed_IsSavedAgain) {
  FakeLink link;
  InterferingDisk disk;
  disk.refused_renames = 2;

  ASSERT_EQ(Run(Order(600), link, disk, [](int) {}), kExitDone) << log_.str();

  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(2));
  EXPECT_THAT(failed[0].message, HasSubstr("Read-only file system"));
  EXPECT_EQ(link.FactsOf<FinishedFact>().at(0).unsaved, "");
  EXPECT_THAT(StepNames(), ElementsAre("step-00000003"));
}

// For example, rank 0 reads all data before the manifest is written. The wait for the grant begins afterwards.
TEST_F(LastSaveTest, CheckpointThatIsCompleteAfterAnHour_IsAwaited) {
  FakeLink link;
  SlowManifestDisk disk;
  int calls = 0;  // while the manifest is being written
  const auto must_leave = [&] {
    if (!disk.reached.HasBeenNotified()) return false;
    ++calls;
    if (calls == 1) clock_.AdvanceTime(absl::Hours(1));
    if (calls == 2) disk.released.Notify();
    return false;
  };

  const TrainerExit code =
      RunRank(Order(600), {.link = link, .file_system = disk, .log = log_, .must_leave = must_leave, .clock = clock_});

  ASSERT_EQ(code, kExitDone) << log_.str();
  EXPECT_GE(calls, 2);
  EXPECT_THAT(link.FactsOf<SaveFailedFact>(), SizeIs(0)) << log_.str();
  EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(1));
  EXPECT_THAT(StepNames(), ElementsAre("step-00000003"));
}

// The commit of step 1 takes longer than checkpoint.timeout_s, and that of step 2 is queued behind it.
TEST_F(LastSaveTest, CommitsOfEarlierSteps_AreAwaited) {
  FakeLink link;
  SlowManifestDisk disk;
  StartOrder order = Order(0);
  order.config.checkpoint_every = 1;
  order.config.checkpoint_timeout_s = 60;
  int calls = 0;  // while the name of the last checkpoint is awaited
  const auto must_leave = [&] {
    if (link.phases().empty() || link.phases().back() != Phase::kLeaving) return false;
    ++calls;
    if (calls == 1) clock_.AdvanceTime(absl::Hours(1));
    if (calls == 2) disk.released.Notify();
    return false;
  };

  const TrainerExit code =
      RunRank(order, {.link = link, .file_system = disk, .log = log_, .must_leave = must_leave, .clock = clock_});

  ASSERT_EQ(code, kExitDone) << log_.str();
  EXPECT_THAT(link.FactsOf<SaveFailedFact>(), SizeIs(0)) << log_.str();
  EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(3));
  EXPECT_EQ(StepNames().back(), "step-00000003");
}

TEST_F(LastSaveTest, RemovedRunFolder_IsRecreatedAndClaimedAgain) {
  FakeLink link;
  InterferingDisk disk;
  disk.remove_at_save = folder_ / "run";

  ASSERT_EQ(Run(Order(600), link, disk, [](int) {}), kExitDone) << log_.str();

  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].message, AllOf(HasSubstr(folder_ / "run"), HasSubstr("No such file")));
  EXPECT_TRUE(Checkpoint::Open(folder_ / "run/step-00000003").ok());
  EXPECT_THAT(*ReadFile(folder_ / "run/.fence"), HasSubstr("abcdefgh"));
}

TEST_F(LastSaveTest, WithoutTimeForRetries_FailsAfterTheFirstTry) {
  FakeLink link;
  FullDisk disk(1000);

  ASSERT_EQ(Run(Order(0), link, disk, [](int) {}), kExitDone);

  ASSERT_THAT(link.FactsOf<SaveFailedFact>(), SizeIs(1));
  EXPECT_FALSE(link.FactsOf<SaveFailedFact>()[0].will_retry);
  EXPECT_NE(link.FactsOf<FinishedFact>().at(0).unsaved, "");
}

TEST_F(LastSaveTest, FailureOfOneRank_MakesAllRetryAndRankZeroReportsWhichRank) {
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
  FullDisk disks[2] = {FullDisk(kEnoughBytes), FullDisk(1000)};
  std::ostringstream logs[2];
  TrainerExit codes[2];
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      StartOrder order = Order(600);
      order.rank = r;
      order.world_size = order.local_world_size = 2;
      SimulatedClock clock;
      const auto wait = [&](absl::Duration duration) {
        clock.AdvanceTime(duration);
        disks[1].set_free_bytes(kEnoughBytes);
      };
      codes[r] = RunRank(order, {.link = links[r],
                                 .file_system = disks[r],
                                 .log = logs[r],
                                 .must_leave = [] { return false; },
                                 .clock = clock,
                                 .wait = wait});
    });
  }
  for (std::thread& rank : ranks) rank.join();

  EXPECT_EQ(codes[0], kExitDone) << logs[0].str();
  EXPECT_EQ(codes[1], kExitDone) << logs[1].str();
  EXPECT_THAT(links[1].FactsOf<SaveFailedFact>(), SizeIs(0));
  ASSERT_THAT(links[0].FactsOf<SaveFailedFact>(), SizeIs(1));
  EXPECT_THAT(links[0].FactsOf<SaveFailedFact>()[0].message, HasSubstr("rank 1 on w1: cannot write "));
  auto saved = Checkpoint::Open(folder_ / "run/step-00000003");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ((*saved)->manifest().world_size, 2u);
}

}  // namespace
}  // namespace trainyard
