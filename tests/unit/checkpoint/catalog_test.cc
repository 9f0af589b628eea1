#include "worker/checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Write(const TemporaryFolder& folder, uint64_t step) {
  SmallState state(static_cast<float>(step));
  auto saved = WriteCheckpoint(folder.path(), SmallManifest(step), state.tensors(), FileSystem::Real());
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved->path;
}

std::vector<uint64_t> Steps(const TemporaryFolder& folder) {
  std::vector<uint64_t> steps;
  auto folders = ListCheckpoints(folder.path());
  for (const StepFolder& found : *folders) steps.push_back(found.step);
  return steps;
}

TEST(CatalogTest, FolderNames_AreReadBackAndOthersPassedOver) {
  EXPECT_EQ(StepFolderName(100), "step-00000100");
  EXPECT_EQ(StepFolderName(123456789012), "step-123456789012");
  EXPECT_EQ(StepOfFolderName("step-00000100"), 100u);
  EXPECT_EQ(StepOfFolderName("step-123456789012"), 123456789012u);
  for (const char* name :
       {"step-100", "step-00000100.g2.partial", "step-0000010x", "step--0000100", "metrics.jsonl", "step-"}) {
    EXPECT_EQ(StepOfFolderName(name), std::nullopt) << name;
  }
}

TEST(CatalogTest, Find_WithNothingThere_FindsNothing) {
  TemporaryFolder folder;

  auto found = FindCheckpoint(folder.path(), std::nullopt);

  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->checkpoint, nullptr);
  EXPECT_THAT(found->damaged, IsEmpty());
}

TEST(CatalogTest, Find_NewestDamaged_FallsBackAndSaysWhy) {
  TemporaryFolder folder;
  Write(folder, 100);
  Write(folder, 200);
  FlipByte(Write(folder, 300) + "/shard-00000.safetensors", 700);

  auto found = FindCheckpoint(folder.path(), std::nullopt);

  ASSERT_TRUE(found.ok());
  ASSERT_NE(found->checkpoint, nullptr);
  EXPECT_EQ(found->checkpoint->manifest().step, 200u);
  ASSERT_EQ(found->damaged.size(), 1u);
  EXPECT_THAT(found->damaged[0], HasSubstr("checkpoint of step 300 is damaged"));
}

TEST(CatalogTest, Find_PreferredStep_IsTakenBeforeNewerOnes) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300}) Write(folder, step);

  EXPECT_EQ(FindCheckpoint(folder.path(), 200)->checkpoint->manifest().step, 200u);
  EXPECT_EQ(FindCheckpoint(folder.path(), 250)->checkpoint->manifest().step, 300u);
}

TEST(CatalogTest, Find_FolderUnderAnotherStepsName_IsNotTrusted) {
  TemporaryFolder folder;
  std::filesystem::rename(Write(folder, 100), folder / "step-00000500");

  auto found = FindCheckpoint(folder.path(), std::nullopt);

  EXPECT_EQ(found->checkpoint, nullptr);
  EXPECT_THAT(found->damaged, ElementsAre(HasSubstr("holds a checkpoint of step 100")));
}

TEST(CatalogTest, SettlePartials_CompleteOneIsTaken_OthersAreRemoved) {
  TemporaryFolder folder;
  std::filesystem::rename(Write(folder, 100), folder / "step-00000100.g3.partial");
  Write(folder, 200);
  std::filesystem::copy(folder / "step-00000200", folder / "step-00000200.g1.partial");
  ASSERT_TRUE(MakeFolders(folder / "step-00000300.g3.partial").ok());

  auto told = SettlePartials(folder.path(), FileSystem::Real());

  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->size(), 3u);
  EXPECT_THAT(Steps(folder), ElementsAre(200, 100));
  EXPECT_EQ(FindCheckpoint(folder.path(), 100)->checkpoint->manifest().step, 100u);
  EXPECT_FALSE(FileExists(folder / "step-00000300.g3.partial"));
}

TEST(CatalogTest, SettlePartials_CompleteOneTakesThePlaceOfADamagedOne) {
  TemporaryFolder folder;
  Write(folder, 100);
  std::filesystem::copy(folder / "step-00000100", folder / "step-00000100.g3.partial");
  std::filesystem::remove(folder / "step-00000100/manifest.json");

  auto told = SettlePartials(folder.path(), FileSystem::Real());

  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(*told, ElementsAre(HasSubstr("which was damaged")));
  EXPECT_EQ(FindCheckpoint(folder.path(), 100)->checkpoint->manifest().step, 100u);
  EXPECT_FALSE(FileExists(folder / "step-00000100.g3.partial"));
}

TEST(CatalogTest, Prune_KeepsTheNewestAndTheProtected) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300, 400, 500, 600}) Write(folder, step);

  auto removed =
      PruneCheckpoints(folder.path(), /*saved_step=*/500, /*keep=*/2, /*protected_steps=*/{100}, FileSystem::Real());

  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, ElementsAre(300, 200));
  EXPECT_THAT(Steps(folder), ElementsAre(600, 500, 400, 100));
}

TEST(CatalogTest, Prune_KeepOfZero_KeepsAll) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200}) Write(folder, step);

  EXPECT_THAT(*PruneCheckpoints(folder.path(), 200, 0, {}, FileSystem::Real()), IsEmpty());
  EXPECT_THAT(Steps(folder), ElementsAre(200, 100));
}

}  // namespace
}  // namespace trainyard
