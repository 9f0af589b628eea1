// Listing of run folders and removal of their entries.
#include "checkpoint/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class InventoryTest : public testing::Test {
 protected:
  std::string Write(uint64_t step) {
    SmallState state(static_cast<float>(step));
    return WriteCheckpoint(folder_.path(), SmallManifest(step), state.tensors(), FileSystem::Real())->path;
  }
  void Damage(const std::string& path) { FlipByte(path + "/shard-00000.safetensors", 700); }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    auto entries = ListRunFolder(folder_.path());
    for (const RunEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }
  absl::Status Remove(const std::vector<std::string>& names) {
    return RemoveFromRunFolder(folder_.path(), names, FileSystem::Real());
  }

  const TemporaryFolder folder_;
};

TEST_F(InventoryTest, List_ReturnsOnlyCheckpointsPartialsAndOrphans) {
  for (uint64_t step : {100, 300, 200}) Write(step);
  std::filesystem::rename(Write(400), folder_ / "step-00000400.g2.partial");
  for (const char* name : {"metrics.jsonl", ".lock", ".fence", "notes.txt", "metrics.jsonl.tmp-12"}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, "12345").ok());
  }
  ASSERT_TRUE(MakeFolders(folder_ / "export.tmp-1").ok());  // of the user: temporary files are never folders

  auto entries = ListRunFolder(folder_.path());

  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_THAT(Names(), ElementsAre("step-00000300", "step-00000200", "step-00000100", "step-00000400.g2.partial",
                                   "metrics.jsonl.tmp-12"));
  EXPECT_EQ((*entries)[3].kind, RunEntry::Kind::kPartial);
  EXPECT_EQ((*entries)[3].step, 400u);
  EXPECT_EQ((*entries)[4].kind, RunEntry::Kind::kOrphan);
  EXPECT_EQ((*entries)[4].size_bytes, 5u);
  EXPECT_GT((*entries)[0].size_bytes, 1000u);
  EXPECT_TRUE(absl::IsNotFound(ListRunFolder(folder_ / "none").status()));
}

TEST_F(InventoryTest, CheckpointThatThisHostFailsToInspect_IsListed) {
  Write(100);
  std::filesystem::create_symlink(folder_ / "step-00000300", folder_ / "step-00000300");

  const auto entries = ListRunFolder(folder_.path());

  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "step-00000300");
}

TEST_F(InventoryTest, Remove_RemovesOnlyTheNamedEntries) {
  for (uint64_t step : {100, 200, 300}) Write(step);

  ASSERT_TRUE(Remove({"step-00000100", "step-00000300"}).ok());

  EXPECT_THAT(Names(), ElementsAre("step-00000200"));
  EXPECT_TRUE(absl::IsNotFound(Remove({"step-00000100"})));
}

TEST_F(InventoryTest, Remove_NeverRemovesTheLastGoodCheckpoint) {
  for (uint64_t step : {100, 200, 300}) Write(step);
  Damage(folder_ / "step-00000300");

  absl::Status refused = Remove({"step-00000100", "step-00000200"});

  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step-00000200 is the last good checkpoint"));
  EXPECT_EQ(Names().size(), 3u);
  EXPECT_TRUE(Remove({"step-00000100", "step-00000300"}).ok())
      << "step 300 is damaged, and step 100 is not the last good checkpoint";
  EXPECT_FALSE(Remove({"step-00000200"}).ok());
}

TEST_F(InventoryTest, Remove_OfTheLastCheckpoint_IsRefusedAlsoIfALaterVersionWroteIt) {
  for (uint64_t step : {100, 200}) MakeLaterVersion(Write(step));

  EXPECT_TRUE(Remove({"step-00000100"}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Remove({"step-00000200"})));

  EXPECT_THAT(Names(), ElementsAre("step-00000200"));
}

TEST_F(InventoryTest, Remove_OfACheckpointThatCannotBeRead_IsRefusedIfNoOtherRemains) {
  MakeUnreadable(Write(100) + "/shard-00000.safetensors");

  EXPECT_TRUE(absl::IsFailedPrecondition(Remove({"step-00000100"})));
  Write(200);
  EXPECT_TRUE(absl::IsFailedPrecondition(Remove({"step-00000200"})));
  EXPECT_TRUE(Remove({"step-00000100"}).ok());
}

TEST_F(InventoryTest, Remove_OfOnlyDamagedCheckpoints_IsAllowed) {
  Damage(Write(100));

  EXPECT_TRUE(Remove({"step-00000100"}).ok());

  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(InventoryTest, Remove_OfAPartialThatIsTheOnlyGoodCheckpoint_IsRefused) {
  std::filesystem::rename(Write(400), folder_ / "step-00000400.g2.partial");
  ASSERT_TRUE(MakeFolders(folder_ / "step-00000500.g2.partial").ok());

  EXPECT_TRUE(absl::IsFailedPrecondition(Remove({"step-00000400.g2.partial", "step-00000500.g2.partial"})));
  EXPECT_TRUE(Remove({"step-00000500.g2.partial"}).ok());
  Write(600);
  EXPECT_TRUE(Remove({"step-00000400.g2.partial"}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-00000600"));
}

TEST_F(InventoryTest, Partials_DoNotCountAsTheCheckpointThatRemains) {
  for (const char* name :
       {"step-00000100.pruned.partial", "step-00000100.g1.swept-abcdefgh.partial", "step-00000100.g2.partial"}) {
    std::filesystem::rename(Write(100), folder_ / name);
  }
  Write(200);

  absl::Status refused = Remove({"step-00000200"});

  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(Names().size(), 4u);
}

TEST_F(InventoryTest, PartialThatIsBeingRemoved_IsNotProtected) {
  std::filesystem::rename(Write(100), folder_ / "step-00000100.pruned.partial");

  absl::Status removed = Remove({"step-00000100.pruned.partial"});

  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(InventoryTest, Remove_WhileAJobTrainsIntoTheFolder_IsRefused) {
  for (uint64_t step : {100, 200}) Write(step);
  EXPECT_EQ(RunFolderHolder(folder_.path()), "");
  auto lock = FileLock::Acquire(folder_ / kRunLockName, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());

  absl::Status refused = Remove({"step-00000100"});

  EXPECT_THAT(RunFolderHolder(folder_.path()), HasSubstr(absl::StrCat("process ", getpid(), " on host ")));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("locked by process ", getpid())));
  EXPECT_EQ(Names().size(), 2u);
}

TEST_F(InventoryTest, CheckpointBeingRead_IsNotRemoved) {
  for (uint64_t step : {100, 200, 300}) Write(step);
  auto reader = Checkpoint::Open(folder_ / "step-00000100");
  ASSERT_TRUE(reader.ok());

  EXPECT_THAT(std::string(Remove({"step-00000100"}).message()), HasSubstr("is being read"));
  EXPECT_THAT(*PruneCheckpoints(folder_.path(), 300, {.keep = 1}, {}, FileSystem::Real()), ElementsAre(200));
  reader->reset();
  EXPECT_THAT(*PruneCheckpoints(folder_.path(), 300, {.keep = 1}, {}, FileSystem::Real()), ElementsAre(100));
  EXPECT_THAT(Names(), ElementsAre("step-00000300"));
}

}  // namespace
}  // namespace trainyard
