// When a single rank saves, what it leaves behind if the coordinator does not answer, and from which job's checkpoints
// it resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "common/clock.h"
#include "common/files.h"
#include "tests/unit/checkpoint/forwarding_disk.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/run.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SavesTest : public SmallRunTest {
 protected:
  static uint64_t SnapshotBytes(const FakeLink& link) {
    for (const MemoryUse& use : link.memory()) {
      if (use.kind == "snapshots") return use.bytes;
    }
    return 0;
  }
};

TEST_F(SavesTest, EveryStep_IsSavedIfConfigured) {
  for (uint64_t steps : {1, 3}) {
    FakeLink link;
    StartOrder order = Order(absl::StrCat("run", steps), steps);
    order.config.checkpoint_every = 1;
    order.config.checkpoint_keep = 0;

    ASSERT_EQ(Run(order, link), kExitDone) << log_.str();

    EXPECT_THAT(*ListCheckpoints(folder_ / absl::StrCat("run", steps)), SizeIs(steps));
    EXPECT_THAT(link.FactsOf<SavedFact>(), SizeIs(steps));
    EXPECT_THAT(log_.str(), HasSubstr("saved step 1 in "));
  }
}

// The coordinator requested a pause and then went away: the checkpoint is complete, and the next generation finds it.
TEST_F(SavesTest, RankThatLeavesWithoutAGrant_LeavesACompletePartialFolder) {
  FakeLink away;
  away.set_answer_grant([](auto, auto, auto) { return absl::DeadlineExceededError("no answer"); });

  ASSERT_EQ(Run(Order("run", 20), away, /*leave=*/true), kExitDone) << log_.str();

  const uint64_t step = away.FactsOf<FinishedFact>().at(0).step;
  EXPECT_THAT(*ListCheckpoints(folder_ / "run"), SizeIs(0));
  EXPECT_EQ(away.FactsOf<SaveReadyFact>().at(0).step, step);
  EXPECT_TRUE(Checkpoint::Open(folder_ / absl::StrCat("run/", StepFolderName(step), ".g1.partial")).ok());
}

// Records the phases that were reported before its first rename.
class PhaseDisk final : public ForwardingDisk {
 public:
  explicit PhaseDisk(const FakeLink& link) : link_(link) {}

  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    if (!phases.has_value()) phases = link_.phases();
    return ForwardingDisk::RenameOrExchange(from, to);
  }

  std::optional<std::vector<Phase>> phases;

 private:
  const FakeLink& link_;
};

// Before a complete partial folder gets its name, all of it is verified, and only some phases have no time limit.
TEST_F(SavesTest, PartialOfAnEarlierGeneration_IsVerifiedInThePhaseOfLoading) {
  FakeLink away, next;
  away.set_answer_grant([](auto, auto, auto) { return absl::DeadlineExceededError("no answer"); });
  StartOrder order = Order("run", 6);
  ASSERT_EQ(Run(order, away, /*leave=*/true), kExitDone) << log_.str();
  PhaseDisk disk(next);
  order.generation = 2;

  const TrainerExit code =
      RunRank(order, {.link = next, .file_system = disk, .log = log_, .must_leave = [] { return false; }});

  ASSERT_EQ(code, kExitDone) << log_.str();
  ASSERT_TRUE(disk.phases.has_value());
  EXPECT_THAT(*disk.phases, ElementsAre(Phase::kLoad));
  EXPECT_EQ(next.FactsOf<RestoredFact>().at(0).step, away.FactsOf<FinishedFact>().at(0).step);
}

// Writes no manifest until `released`. Before that, an hour passes when a file whose path ends with `slow_file` is
// created.
class StuckDisk final : public ForwardingDisk {
 public:
  explicit StuckDisk(SimulatedClock& clock, std::string slow_file = kManifestName)
      : clock_(clock), slow_file_(std::move(slow_file)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (!released.HasBeenNotified()) {
      if (absl::EndsWith(path, slow_file_)) clock_.AdvanceTime(absl::Hours(1));
      if (absl::EndsWith(path, kManifestName)) released.WaitForNotification();
    }
    return ForwardingDisk::Create(path);
  }

  absl::Notification released;

 private:
  SimulatedClock& clock_;
  const std::string slow_file_;
};

TEST_F(SavesTest, StopThatNeedsASave_IsCancelled_IfTheCheckpointIsNotCompleteInTime) {
  FakeLink link;
  link.StopAfterReportOf(1, /*needs_save=*/true);
  SimulatedClock clock;
  StuckDisk disk(clock);
  StartOrder order = Order("run", 20);
  order.config.checkpoint_timeout_s = 60;

  const TrainerExit code = RunRank(order, {.link = link,
                                           .file_system = disk,
                                           .log = log_,
                                           .must_leave =
                                               [&] {
                                                 const bool failed = !link.FactsOf<SaveFailedFact>().empty();
                                                 if (failed && !disk.released.HasBeenNotified()) disk.released.Notify();
                                                 return false;
                                               },
                                           .clock = clock});

  ASSERT_EQ(code, kExitDone) << log_.str();
  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(1)) << log_.str();
  EXPECT_EQ(failed[0].stop_request, 1u);
  EXPECT_THAT(failed[0].message, HasSubstr("was not complete after checkpoint.timeout_s (60 s)"));
  EXPECT_FALSE(link.FactsOf<FinishedFact>().at(0).stopped);
  EXPECT_EQ(link.FactsOf<FinishedFact>().at(0).step, 20u);
}

// The commits of steps 1 and 2 are not complete, so the save of step 3 cannot end, although its part is written.
TEST_F(SavesTest, StopThatNeedsASave_IsCancelled_IfEarlierCheckpointsAreNotCompleteInTime) {
  FakeLink link;
  link.StopAfterReportOf(1, /*needs_save=*/true);
  SimulatedClock clock;
  StuckDisk disk(clock, JoinPath("step-00000003.g1.partial", PartName(0)));
  StartOrder order = Order("run", 6);
  order.config.checkpoint_every = 1;
  order.config.checkpoint_timeout_s = 60;

  const TrainerExit code =
      RunRank(order, {.link = link,
                      .file_system = disk,
                      .log = log_,
                      .must_leave =
                          [&] {
                            // While the disk is stuck, only this thread reports facts.
                            if (!disk.released.HasBeenNotified() && !link.FactsOf<SaveFailedFact>().empty()) {
                              disk.released.Notify();
                            }
                            return false;
                          },
                      .clock = clock});
  if (!disk.released.HasBeenNotified()) disk.released.Notify();

  ASSERT_EQ(code, kExitDone) << log_.str();
  const std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(1)) << log_.str();
  EXPECT_EQ(failed[0].step, 3u);
  EXPECT_EQ(failed[0].stop_request, 1u);
  EXPECT_THAT(failed[0].message,
              HasSubstr("earlier checkpoints were still being completed after checkpoint.timeout_s"));
  EXPECT_EQ(link.FactsOf<FinishedFact>().at(0).step, 6u);
}

// A later generation resumes automatically; the user has not allowed it to resume from another job's checkpoints.
TEST_F(SavesTest, CheckpointsOfAnotherJob_AreNotResumedFromWithoutPermission) {
  FakeLink other, refused, permitted;
  ASSERT_EQ(Run(Order("run", 2), other), kExitDone);
  StartOrder order = Order("run", 4);
  order.job_id = "bcdefghi";
  order.generation = 2;

  EXPECT_EQ(Run(order, refused), kExitRefused);
  EXPECT_THAT(refused.FactsOf<RefusedFact>().at(0).message, HasSubstr("holds checkpoints of job abcdefgh"));

  order.resume = true;
  EXPECT_EQ(Run(order, permitted), kExitDone) << log_.str();
  EXPECT_EQ(permitted.FactsOf<RestoredFact>().at(0).step, 2u);
}

// One job is paused; another job resumes from the folder of the paused job, and is refused because of its own width.
TEST_F(SavesTest, RefusedJob_LeavesTheFolderOfAnotherUnchanged) {
  FakeLink paused, refused, resumed;
  StartOrder order = Order("run", 6);
  paused.StopAfterReportOf(2);
  ASSERT_EQ(Run(order, paused), kExitDone);
  const auto listing = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "run")) {
      if (entry.is_regular_file())
        files[entry.path()] = entry.path().filename() == ".lock" ? "" : *ReadFile(entry.path());
    }
    return files;
  };
  const auto before = listing();
  StartOrder other = Order("run", 6);
  other.job_id = "bcdefghi";
  other.resume = true;
  other.config.model.width = 32;

  EXPECT_EQ(Run(other, refused), kExitRefused);

  EXPECT_EQ(listing(), before);
  order.generation = 2;
  order.restart_step = paused.FactsOf<FinishedFact>().at(0).step;
  EXPECT_EQ(Run(order, resumed), kExitDone) << log_.str();
  EXPECT_EQ(resumed.FactsOf<FinishedFact>().at(0).step, 6u);
}

TEST_F(SavesTest, RefusedJob_CreatesNoFolder) {
  FakeLink link;
  StartOrder order = Order("new/run", 6);
  order.config.init_from = folder_ / "missing";

  EXPECT_EQ(Run(order, link), kExitRefused);

  EXPECT_FALSE(FileExists(folder_ / "new"));
}

TEST_F(SavesTest, ResumingWithoutACheckpoint_IsRefusedUnlessAFreshStartIsAllowed) {
  FakeLink mistyped, empty, allowed;
  StartOrder order = Order("missing", 2);
  order.resume = true;
  EXPECT_EQ(Run(order, mistyped), kExitRefused);
  EXPECT_THAT(mistyped.FactsOf<RefusedFact>().at(0).message,
              AllOf(HasSubstr(folder_ / "missing"), HasSubstr("is not there"), HasSubstr("--allow-fresh-start")));
  EXPECT_FALSE(FileExists(folder_ / "missing"));

  ASSERT_TRUE(MakeFolders(folder_ / "empty").ok());
  order.config.checkpoint_dir = folder_ / "empty";
  EXPECT_EQ(Run(order, empty), kExitRefused);
  EXPECT_THAT(empty.FactsOf<RefusedFact>().at(0).message, HasSubstr("holds no checkpoint"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "empty"));

  order.allow_fresh_start = true;
  EXPECT_EQ(Run(order, allowed), kExitDone) << log_.str();
}

// The size of the file stays the same, so only its content differs; the job is restarted automatically.
TEST_F(SavesTest, DataReplacedDuringARun_IsDetectedAtARestart) {
  FakeLink trained, untouched, replaced;
  StartOrder order = Order("run", 4);
  trained.StopAfterReportOf(1);
  ASSERT_EQ(Run(order, trained), kExitDone);
  const std::string path = folder_ / "text.txt", was = *ReadFile(path);
  order.generation = 2;
  order.config.steps = 5;
  ASSERT_EQ(Run(order, untouched), kExitDone) << log_.str();
  std::string is = was;
  std::swap(is[100], is[101]);
  is[100] = is[100] == 'X' ? 'Y' : 'X';
  ASSERT_TRUE(WriteFileAtomically(path, is).ok());
  order.generation = 3;
  order.config.steps = 6;

  EXPECT_EQ(Run(order, replaced), kExitRefused);

  EXPECT_THAT(replaced.FactsOf<RefusedFact>().at(0).message,
              HasSubstr(absl::StrCat(path, " has the hash ", HashHex(is), ", had ", HashHex(was))));
}

TEST_F(SavesTest, CheckpointOfAnotherJob_IsComparedByItsSpec) {
  FakeLink trained, refused, changed;
  ASSERT_EQ(Run(Order("run", 2), trained), kExitDone);
  StartOrder order = Order("run", 3);
  order.job_id = "bcdefghi";
  order.resume = true;
  order.spec_bytes = "another spec";
  order.compare_spec = [](absl::string_view before) -> absl::StatusOr<std::vector<KeyChange>> {
    EXPECT_EQ(before, "spec");
    return absl::InvalidArgumentError("train.model.heads was 2, is 4");
  };

  EXPECT_EQ(Run(order, refused), kExitRefused);
  EXPECT_THAT(refused.FactsOf<RefusedFact>().at(0).message, HasSubstr("train.model.heads was 2, is 4; "));

  order.compare_spec = [](absl::string_view) { return std::vector<KeyChange>{{"train.steps", "2", "3"}}; };
  EXPECT_EQ(Run(order, changed), kExitDone) << log_.str();
  EXPECT_THAT(changed.FactsOf<RestoredFact>().at(0).changes, ElementsAre(KeyChange{"train.steps", "2", "3"}));
}

TEST_F(SavesTest, FilesOfARun_AreReadableByTheirOwnerOnlyAndAnExistingFolderIsUnchanged) {
  FakeLink created, existing;
  ASSERT_TRUE(MakeFolders(folder_ / "existing", 0755).ok());
  std::filesystem::permissions(folder_ / "existing", std::filesystem::perms(0755));

  ASSERT_EQ(Run(Order("new/run", 2), created), kExitDone);
  ASSERT_EQ(Run(Order("existing", 2), existing), kExitDone);

  const auto for_others = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions() & std::filesystem::perms(0077);
  };
  EXPECT_EQ(for_others(folder_ / "existing"), std::filesystem::perms(0055));
  for (const char* name : {"new", "existing"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / name)) {
      EXPECT_EQ(for_others(entry.path()), std::filesystem::perms::none) << entry.path();
    }
  }
  EXPECT_EQ(for_others(folder_ / "new"), std::filesystem::perms::none);
}

// A later generation could resume from these snapshots if the rank was killed.
TEST_F(SavesTest, SnapshotsAreWholeBeforeTheCheckpointIsRenamed_AndRemovedWhenTheRankIsDone) {
  TemporaryFolder memory;
  StartOrder order = Order("run", 6);
  order.snapshot_folder = memory.path();
  order.config.checkpoint_every = 2;
  FakeLink link;
  std::vector<std::string> whole;
  link.set_answer_grant([&](uint64_t step, auto, auto) {
    for (const std::string& path : ListSnapshots(memory.path(), order.job_id)) {
      auto snapshot = Snapshot::Open(path);
      if (!snapshot.ok() || (*snapshot)->part().save.step != step) continue;
      EXPECT_EQ((*snapshot)->Verify(), absl::OkStatus());
      EXPECT_TRUE(ParseManifest((*snapshot)->extra()).ok());
      EXPECT_EQ(ParseManifest((*snapshot)->extra())->data.consumed_samples, 4 * step);
      EXPECT_EQ(ParseManifest((*snapshot)->extra())->optimizer_updates, step);
      whole.push_back(absl::StrCat(step));
    }
    return absl::OkStatus();
  });

  ASSERT_EQ(Run(order, link), kExitDone) << log_.str();

  EXPECT_THAT(whole, ElementsAre("2", "4")) << "the last save is made without a copy";
  EXPECT_GT(SnapshotBytes(link), 0u);
  EXPECT_TRUE(std::filesystem::is_empty(memory.path()));
}

// Only rank 0 knows whether the checkpoint of the last step has its name.
TEST_F(SavesTest, SnapshotsOfAllRanks_AreKept_IfARankLeavesBeforeTheLastCheckpointIsNamed) {
  TemporaryFolder memory;
  StartOrder order = Order("run", 6);
  order.snapshot_folder = memory.path();
  order.world_size = order.local_world_size = 2;
  order.config.checkpoint_every = 2;
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
  std::atomic<bool> leaves = false;
  links[0].set_answer_grant([&](uint64_t step, auto, auto) -> absl::Status {
    if (step < 6) return absl::OkStatus();
    leaves = true;
    return absl::DeadlineExceededError("no answer");
  });
  std::ostringstream logs[2];
  TrainerExit codes[2];
  std::vector<std::thread> ranks;

  for (uint64_t r = 0; r < 2; ++r) {
    order.rank = static_cast<int>(r);
    ranks.emplace_back([&, r, order] {
      const auto must_leave = [&leaves] { return leaves.load(); };
      codes[r] = RunRank(
          order, {.link = links[r], .file_system = FileSystem::Real(), .log = logs[r], .must_leave = must_leave});
    });
  }
  for (std::thread& rank : ranks) rank.join();

  for (uint64_t r = 0; r < 2; ++r) {
    EXPECT_EQ(codes[r], kExitDone) << logs[r].str();
    const SnapshotPlace place{
        .folder = memory.path(), .job_id = order.job_id, .generation = order.generation, .rank = r};
    EXPECT_TRUE(FileExists(SnapshotPath(place, 'a'))) << "rank " << r << ": " << logs[r].str();
  }
}

TEST_F(SavesTest, SnapshotsOfAnOlderGeneration_AreRemovedWhenANewerSaveIsWritten) {
  TemporaryFolder memory;
  const SnapshotPlace older{.folder = memory.path(), .job_id = "abcdefgh", .generation = 1, .rank = 5};
  *SnapshotBuffer::Make(SnapshotPath(older, 'a'), 100);
  StartOrder order = Order("run", 8);
  order.generation = 2;
  order.snapshot_folder = memory.path();
  order.config.checkpoint_every = 2;
  FakeLink link;
  link.set_answer_grant([&](uint64_t step, auto, auto) {
    const bool exists = std::filesystem::exists(SnapshotPath(older, 'a'));
    EXPECT_TRUE(step < 6 || !exists);
    return absl::OkStatus();
  });

  ASSERT_EQ(Run(order, link), kExitDone) << log_.str();

  EXPECT_TRUE(std::filesystem::is_empty(memory.path()));
}

TEST_F(SavesTest, WithoutSharedMemory_UsesOnePrivateCopyAndWarnsOnce) {
  StartOrder order = Order("run", 6);
  order.snapshot_folder = folder_ / "missing";
  order.config.checkpoint_every = 2;
  FakeLink shared, missing;

  ASSERT_EQ(Run(order, missing), kExitDone) << log_.str();

  EXPECT_THAT(log_.str(), HasSubstr("saves to disk continue: there is no folder in shared memory"));
  EXPECT_EQ(log_.str().find("outlive"), log_.str().rfind("outlive"));
  EXPECT_THAT(missing.FactsOf<SavedFact>(), SizeIs(3));
  order = Order("other", 6);
  TemporaryFolder memory;
  order.snapshot_folder = memory.path();
  order.config.checkpoint_every = 2;
  ASSERT_EQ(Run(order, shared), kExitDone);
  EXPECT_EQ(SnapshotBytes(shared), 2 * SnapshotBytes(missing));
}

// The job saves only on request, so no memory is reserved at its start.
TEST_F(SavesTest, RequestedSave_IsWaitedForIfThereIsNotEnoughMemoryForACopy) {
  FakeLink copied, waited;
  copied.SaveAfterReportOf(2);
  waited.SaveAfterReportOf(2);
  StartOrder with_memory = Order("run", 8), without_memory = Order("other", 8);
  without_memory.local_world_size = 1'000'000'000;  // ranks that need as much memory as this one

  ASSERT_EQ(Run(with_memory, copied), kExitDone) << log_.str();
  ASSERT_EQ(Run(without_memory, waited), kExitDone) << log_.str();

  const std::vector<SavedFact> saves[] = {copied.FactsOf<SavedFact>(), waited.FactsOf<SavedFact>()};
  ASSERT_THAT(saves[0], SizeIs(2));
  ASSERT_THAT(saves[1], SizeIs(2)) << log_.str();
  EXPECT_TRUE(saves[0][0].stall_s.has_value());
  EXPECT_FALSE(saves[1][0].stall_s.has_value()) << "the save was copied";
  EXPECT_THAT(log_.str(), HasSubstr("so training waits until each save is written"));
}

// Writes the fence of a later generation when rank 0's part of a save is created.
class FencingDisk final : public ForwardingDisk {
 public:
  explicit FencingDisk(std::string run_folder) : run_folder_(std::move(run_folder)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (absl::EndsWith(path, PartName(0))) {
      const std::string fence = "{\"job\":\"abcdefgh\",\"generation\":2}\n";
      EXPECT_TRUE(WriteFileAtomically(JoinPath(run_folder_, ".fence"), fence).ok());
    }
    return ForwardingDisk::Create(path);
  }

 private:
  const std::string run_folder_;
};

// The next generation may resume from the checkpoint, and then does not make the step again.
TEST_F(SavesTest, StepOfASaveThatIsWaitedFor_IsReportedBeforeTheSave) {
  FakeLink link;
  StartOrder order = Order("run", 8);
  order.config.checkpoint_every = 2;
  order.local_world_size = 1'000'000'000;  // ranks that need as much memory as this one
  FencingDisk disk(order.config.checkpoint_dir);

  const TrainerExit code =
      RunRank(order, {.link = link, .file_system = disk, .log = log_, .must_leave = [] { return false; }});

  EXPECT_EQ(code, kExitAborted) << log_.str();
  EXPECT_THAT(log_.str(), HasSubstr("so training waits until each save is written"));
  EXPECT_THAT(link.steps(), SizeIs(2));
  EXPECT_THAT(*ReadFile(folder_ / "run/metrics.jsonl"), HasSubstr("\"step\":2,"));
}

}  // namespace
}  // namespace trainyard
