#include "checkpoint/settle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/catalog.h"
#include "checkpoint/read_error.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class DiskThatKeepsFolders final : public ForwardingDisk {
 public:
  absl::Status RemoveAll(const std::string&) override { return absl::AlreadyExistsError("it is not empty"); }
};

class SettleTest : public ::testing::Test {
 protected:
  // Writes a complete partial, as a save of that generation leaves it before the grant. Returns its manifest's hash.
  std::string Partial(uint64_t step, uint64_t generation, const std::string& job = "abcdefgh") {
    TemporaryFolder elsewhere;
    SmallState state(static_cast<float>(step + generation));
    Manifest manifest = SmallManifest(step);
    manifest.generation = generation;
    manifest.job_id = job;
    auto saved = WriteCheckpoint(elsewhere.path(), manifest, state.tensors(), FileSystem::Real());
    EXPECT_TRUE(saved.ok()) << saved.status();
    std::filesystem::copy(saved->path, PartialPathOf(step, generation), std::filesystem::copy_options::recursive);
    return saved->manifest_hash;
  }
  std::string PartialPathOf(uint64_t step, uint64_t generation) {
    return folder_ / absl::StrCat(StepFolderName(step), ".g", generation, ".partial");
  }
  void Checkpoint(uint64_t step) {
    SmallState state(static_cast<float>(step));
    ASSERT_TRUE(WriteCheckpoint(folder_.path(), SmallManifest(step), state.tensors(), FileSystem::Real()).ok());
  }
  std::vector<std::string> Settle(std::optional<JobGeneration> settled, std::set<std::string> granted = {}) {
    auto messages = SettlePartials(folder_.path(),
                                   {.job_id = "abcdefgh", .settled = std::move(settled), .granted = std::move(granted)},
                                   FileSystem::Real());
    EXPECT_TRUE(messages.ok()) << messages.status();
    return *messages;
  }
  std::vector<std::string> Names() { return *ListNames(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(SettleTest, CompletePartialOfTheLastGeneration_BecomesACheckpoint_AndOthersAreRemoved) {
  Partial(100, 3);
  Checkpoint(200);
  Partial(200, 3);
  ASSERT_TRUE(MakeFolders(PartialPathOf(300, 3)).ok());

  std::vector<std::string> messages = Settle(JobGeneration{"abcdefgh", 3});

  EXPECT_THAT(messages, ElementsAre(AllOf(HasSubstr("was complete and becomes "), HasSubstr("step-00000100")),
                                    HasSubstr("is of a step that has a checkpoint already"),
                                    HasSubstr("was left by an interrupted save")));
  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200"));
}

// Generation 1 was cut off, and generation 2 claimed the folder and settled. A partial that generation 1 completes
// later is not valid.
TEST_F(SettleTest, PartialCompletedByAFencedGeneration_IsNotUsed) {
  Partial(900, 1);

  std::vector<std::string> messages = Settle(JobGeneration{"abcdefgh", 2});

  EXPECT_THAT(messages,
              ElementsAre(HasSubstr("was completed by generation 1 after generation 2 had claimed the folder")));
  EXPECT_THAT(Names(), IsEmpty());
}

// Generation 2 claimed the folder and was killed before it settled: the partial of generation 1 is the newest.
TEST_F(SettleTest, GenerationKilledBeforeSettling_DoesNotCount) {
  Partial(900, 1);

  Settle(JobGeneration{"abcdefgh", 1});

  EXPECT_THAT(Names(), ElementsAre("step-00000900"));
}

// Job b resumed in the folder of job a, whose generation 3 still runs: 3 is more than 1, but not a generation of b.
TEST_F(SettleTest, GenerationsOfAnotherJob_AreNotCompared) {
  Partial(900, 3, "a");

  std::vector<std::string> messages = Settle(JobGeneration{"b", 1});

  EXPECT_THAT(messages, ElementsAre(HasSubstr("is of job a, but job b had claimed the folder")));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SettleTest, GrantedPartial_IsValidWhicheverGenerationWroteIt) {
  const std::string granted = Partial(900, 1);
  Partial(800, 1);

  Settle(JobGeneration{"abcdefgh", 2}, {granted});

  EXPECT_THAT(Names(), ElementsAre("step-00000900"));
}

TEST_F(SettleTest, WithoutARecordOfWhoSettled_AllPartialsOfThisJobAreValid) {
  Partial(100, 1);
  Partial(200, 5);
  Partial(300, 5, "another");

  Settle(std::nullopt);

  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200"));
}

TEST_F(SettleTest, EveryByteIsVerifiedBeforeTheRename) {
  Partial(100, 3);
  FlipByte(PartialPathOf(100, 3) + "/shard-00000.safetensors", 700);

  std::vector<std::string> messages = Settle(JobGeneration{"abcdefgh", 3});

  EXPECT_THAT(messages, ElementsAre(AllOf(HasSubstr("is damaged"), HasSubstr("shard-00000.safetensors"))));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SettleTest, CompletePartial_ReplacesADamagedCheckpoint) {
  Checkpoint(100);
  Partial(100, 3);
  std::filesystem::remove(folder_ / "step-00000100/manifest.json");

  std::vector<std::string> messages = Settle(JobGeneration{"abcdefgh", 3});

  EXPECT_THAT(messages, ElementsAre(HasSubstr("which was damaged")));
  EXPECT_THAT(Names(), ElementsAre("step-00000100"));
  EXPECT_EQ(FindCheckpoint(folder_.path())->checkpoint->manifest().generation, 3u);
}

TEST_F(SettleTest, JobThatMayStillBeRefused_KeepsTheDamagedCheckpointThatAPartialReplaces) {
  Checkpoint(100);
  Partial(100, 3);
  std::filesystem::remove(folder_ / "step-00000100/manifest.json");
  const SettleOptions refusable{.job_id = "abcdefgh", .removes = false};

  ASSERT_TRUE(SettlePartials(folder_.path(), refusable, FileSystem::Real()).ok());
  EXPECT_THAT(Names(), UnorderedElementsAre("step-00000100", "step-00000100.g3.partial"));
  EXPECT_EQ(FindCheckpoint(folder_.path())->checkpoint->manifest().generation, 3u);

  EXPECT_THAT(Settle(JobGeneration{"abcdefgh", 3}), ElementsAre(HasSubstr("; it was removed")));
  EXPECT_THAT(Names(), ElementsAre("step-00000100"));
}

// A folder that is being removed has another name, but still contains all files at first. The third folder has the name
// of a partial of generation 4, but its manifest is of generation 3.
TEST_F(SettleTest, FolderBeingRemovedOrReplaced_IsNotUsedAsASave) {
  Partial(100, 3);
  std::filesystem::rename(PartialPathOf(100, 3), folder_ / "step-00000100.pruned.partial");
  Partial(200, 3);
  std::filesystem::rename(PartialPathOf(200, 3), folder_ / "step-00000200.g3.swept-12ab.partial");
  Partial(300, 3);
  std::filesystem::rename(PartialPathOf(300, 3), PartialPathOf(300, 4));

  Settle(JobGeneration{"abcdefgh", 3});

  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SettleTest, CheckpointRenamedDuringAReplacement_IsRestored) {
  Checkpoint(100);
  Checkpoint(200);
  std::filesystem::rename(folder_ / "step-00000100", folder_ / "step-00000100.g3.partial.replaced");
  std::filesystem::copy(folder_ / "step-00000200", folder_ / "step-00000200.g3.partial.replaced");

  Settle(JobGeneration{"abcdefgh", 2});

  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200"));
}

TEST_F(SettleTest, TemporaryFilesOfEndedProcesses_AreRemoved) {
  // No process has this number, which is above the kernel's limit.
  for (const char* name : {"metrics.jsonl.tmp-999999999", ".lock.new-999999999", "notes.tmp-mine"}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, "x").ok());
  }
  const std::string ours = absl::StrCat("watch.tmp-", getpid());
  ASSERT_TRUE(WriteFileAtomically(folder_ / ours, "x").ok());
  ASSERT_TRUE(MakeFolders(folder_ / "export.new-999999999/of the user").ok());
  ASSERT_TRUE(MakeFolders(folder_ / ".trainyard/job").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / ".trainyard/token-0123", "x").ok());

  Settle(std::nullopt);

  EXPECT_THAT(Names(), ElementsAre(".trainyard", "export.new-999999999", "notes.tmp-mine", ours));
  EXPECT_THAT(*ListNames(folder_ / ".trainyard"), ElementsAre("job"));
}

// A partial that cannot be removed does not prevent the start: it is reported, and removed by a later sweep.
TEST_F(SettleTest, PartialThatCannotBeRemoved_IsReported) {
  DiskThatKeepsFolders disk;
  ASSERT_TRUE(MakeFolders(PartialPathOf(300, 3)).ok());

  auto messages = SettlePartials(folder_.path(), {.job_id = "abcdefgh"}, disk);

  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_THAT(*messages, ElementsAre(HasSubstr("it cannot be removed: it is not empty")));
  // The partial has a name that no process writes to.
  EXPECT_THAT(Names(), ElementsAre(HasSubstr("step-00000300.g3.swept-")));
  EXPECT_EQ(SweepPartials(folder_.path(), 3, FileSystem::Real()).size(), 1u);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SettleTest, ReplacedCheckpointThatCannotBeRemoved_IsReported) {
  Checkpoint(100);
  Partial(100, 3);
  std::filesystem::remove(folder_ / "step-00000100/manifest.json");
  DiskThatKeepsFolders disk;

  auto messages = SettlePartials(folder_.path(), {.job_id = "abcdefgh"}, disk);

  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_THAT(*messages, ElementsAre(HasSubstr("which was damaged"), HasSubstr("cannot be removed: it is not empty")));
  EXPECT_THAT(Names(), ElementsAre("step-00000100", HasSubstr("step-00000100.g3.swept-")));
  EXPECT_EQ(FindCheckpoint(folder_.path())->checkpoint->manifest().generation, 3u);
}

// An older program, for example after a return to the previous release, cannot decide what such folders are.
TEST_F(SettleTest, FoldersOfALaterVersion_AreNeitherRemovedNorReplaced) {
  Partial(100, 3);
  Checkpoint(200);
  Partial(200, 3);
  const std::string replaced = absl::StrCat(folder_ / "step-00000050", kReplacedSuffix);
  std::filesystem::copy(folder_ / "step-00000200", replaced, std::filesystem::copy_options::recursive);
  MakeLaterVersion(replaced);

  MakeLaterVersion(PartialPathOf(100, 3));
  const absl::Status with_partial = SettlePartials(folder_.path(), {.job_id = "abcdefgh"}, FileSystem::Real()).status();
  std::filesystem::remove_all(PartialPathOf(100, 3));
  MakeLaterVersion(folder_ / "step-00000200");
  const absl::Status with_checkpoint =
      SettlePartials(folder_.path(), {.job_id = "abcdefgh"}, FileSystem::Real()).status();
  std::filesystem::remove_all(PartialPathOf(200, 3));
  Settle(std::nullopt);

  EXPECT_EQ(with_partial.code(), absl::StatusCode::kUnimplemented) << with_partial;
  EXPECT_EQ(with_checkpoint.code(), absl::StatusCode::kUnimplemented) << with_checkpoint;
  EXPECT_THAT(Names(), ElementsAre("step-00000050.replaced", "step-00000200"));
}

// The disk of this host fails. What it cannot read may be the newest state of the run.
TEST_F(SettleTest, FoldersThatCannotBeRead_AreNeitherRemovedNorReplaced) {
  const auto fails = [this](const std::string& shard_of) {
    MakeUnreadable(shard_of + "/shard-00000.safetensors");
    const absl::Status status = SettlePartials(folder_.path(), {.job_id = "abcdefgh"}, FileSystem::Real()).status();
    EXPECT_TRUE(IsFailedRead(status)) << status;
    EXPECT_TRUE(std::filesystem::exists(shard_of + "/manifest.json"));
    std::filesystem::remove_all(shard_of);
  };
  Partial(100, 3);
  fails(PartialPathOf(100, 3));

  Checkpoint(200);
  Partial(200, 3);
  fails(folder_ / "step-00000200");
  EXPECT_THAT(Names(), ElementsAre("step-00000200.g3.partial"));
  Settle(std::nullopt);

  const std::string replaced = absl::StrCat(folder_ / "step-00000050", kReplacedSuffix);
  std::filesystem::copy(folder_ / "step-00000200", replaced, std::filesystem::copy_options::recursive);
  fails(replaced);
  EXPECT_THAT(Names(), ElementsAre("step-00000200"));
}

TEST_F(SettleTest, Sweep_RemovesNoPartialOfItsOwnGeneration) {
  Partial(100, 3);
  Partial(200, 2);
  Checkpoint(50);

  std::vector<std::string> messages = SweepPartials(folder_.path(), 3, FileSystem::Real());

  EXPECT_THAT(messages, ElementsAre(HasSubstr("step-00000200.g2.partial, left by another generation, was removed")));
  EXPECT_THAT(Names(), ElementsAre("step-00000050", "step-00000100.g3.partial"));
}

// A later generation has claimed the folder meanwhile, and the partial belongs to it.
TEST_F(SettleTest, Sweep_RemovesNothingOnceItMayNot) {
  Partial(100, 4);

  EXPECT_THAT(SweepPartials(folder_.path(), 3, FileSystem::Real(), [] { return absl::AbortedError("fenced"); }),
              IsEmpty());

  EXPECT_THAT(Names(), ElementsAre("step-00000100.g4.partial"));
}

}  // namespace
}  // namespace trainyard
