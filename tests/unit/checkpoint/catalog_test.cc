#include "checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/read_error.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `loss`: the loss of the evaluation after this step.
std::string WriteStep(const TemporaryFolder& folder, uint64_t step, std::optional<double> loss = std::nullopt) {
  SmallState state(static_cast<float>(step));
  Manifest manifest = SmallManifest(step);
  if (loss.has_value()) manifest.evaluation = {.loss = loss, .tokens = 100};
  auto saved = WriteCheckpoint(folder.path(), manifest, state.tensors(), FileSystem::Real());
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved->path;
}

std::vector<uint64_t> Steps(const TemporaryFolder& folder) {
  std::vector<uint64_t> steps;
  auto folders = ListCheckpoints(folder.path());
  for (const StepFolder& found : *folders) steps.push_back(found.step);
  return steps;
}

TEST(CatalogTest, StepFolderNames_AreParsed_AndOtherNamesAreIgnored) {
  EXPECT_EQ(StepFolderName(100), "step-00000100");
  EXPECT_EQ(StepFolderName(123456789012), "step-123456789012");
  EXPECT_EQ(StepOfFolderName("step-00000100"), 100u);
  EXPECT_EQ(StepOfFolderName("step-123456789012"), 123456789012u);
  for (const char* name :
       {"step-100", "step-00000100.g2.partial", "step-0000010x", "step--0000100", "metrics.jsonl", "step-"}) {
    EXPECT_EQ(StepOfFolderName(name), std::nullopt) << name;
  }
}

TEST(CatalogTest, Find_InAnEmptyFolder_FindsNothing) {
  TemporaryFolder folder;

  auto found = FindCheckpoint(folder.path());

  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->checkpoint, nullptr);
  EXPECT_THAT(found->damaged, IsEmpty());
}

TEST(CatalogTest, Find_WithADamagedNewestCheckpoint_ReturnsTheOneBeforeAndTheReason) {
  TemporaryFolder folder;
  WriteStep(folder, 100);
  WriteStep(folder, 200);
  FlipByte(WriteStep(folder, 300) + "/shard-00000.safetensors", 700);

  auto found = FindCheckpoint(folder.path());

  ASSERT_TRUE(found.ok());
  ASSERT_NE(found->checkpoint, nullptr);
  EXPECT_EQ(found->checkpoint->manifest().step, 200u);
  ASSERT_EQ(found->damaged.size(), 1u);
  EXPECT_THAT(found->damaged[0], HasSubstr("checkpoint of step 300 is damaged"));
}

// The newest checkpoint may be good. A job that used the one before would repeat steps, and its saves would overwrite
// the newest checkpoint.
TEST(CatalogTest, Find_WithANewestCheckpointOfALaterVersion_FailsAndNamesBothVersions) {
  TemporaryFolder folder;
  WriteStep(folder, 100);
  MakeLaterVersion(WriteStep(folder, 200));
  std::vector<std::string> skipped;

  const absl::Status status = FindCheckpoint(folder.path()).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("checkpoint of step 200"), HasSubstr("its version is 99"),
                                                   HasSubstr("versions up to 5")));
  EXPECT_EQ(FindCheckpoint(folder.path(), {.before_step = 200})->checkpoint->manifest().step, 100u);
  EXPECT_EQ(OpenCheckpointOrNewest(folder.path(), skipped).status().code(), absl::StatusCode::kUnimplemented);
}

// The disk of this host fails. The checkpoint may be good, and a job that used an older one would repeat steps.
TEST(CatalogTest, Find_WithANewestCheckpointThatCannotBeRead_Fails) {
  for (const char* name : {"/shard-00000.safetensors", "/manifest.json"}) {
    TemporaryFolder folder;
    WriteStep(folder, 100);
    MakeUnreadable(WriteStep(folder, 200) + name);
    std::vector<std::string> skipped;

    const absl::Status status = FindCheckpoint(folder.path()).status();

    EXPECT_TRUE(IsFailedRead(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the checkpoint of step 200 may be good"));
    EXPECT_TRUE(IsFailedRead(OpenCheckpointOrNewest(folder.path(), skipped).status()));
    EXPECT_EQ(FindCheckpoint(folder.path(), {.before_step = 200})->checkpoint->manifest().step, 100u);
  }
}

TEST(CatalogTest, Find_ReturnsTheNewest) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 300, 200}) WriteStep(folder, step);

  EXPECT_EQ(FindCheckpoint(folder.path())->checkpoint->manifest().step, 300u);
}

TEST(CatalogTest, FolderWithTheNameOfAnotherStep_IsNotUsed) {
  TemporaryFolder folder;
  std::filesystem::rename(WriteStep(folder, 100), folder / "step-00000500");

  auto found = FindCheckpoint(folder.path());

  EXPECT_EQ(found->checkpoint, nullptr);
  EXPECT_THAT(found->damaged, ElementsAre(HasSubstr("contains a checkpoint of step 100")));
}

TEST(CatalogTest, Prune_KeepsTheNewestAndTheProtected) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300, 400, 500, 600}) WriteStep(folder, step);

  auto removed =
      PruneCheckpoints(folder.path(), /*newest_step=*/500, {.keep = 2}, /*protected_steps=*/{100}, FileSystem::Real());

  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, ElementsAre(300, 200));
  EXPECT_THAT(Steps(folder), ElementsAre(600, 500, 400, 100));
}

// The disk hangs during a removal, and another generation claims the folder meanwhile.
TEST(CatalogTest, Prune_RemovesNothingMoreOnceItMayNot) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300, 400}) WriteStep(folder, step);
  int calls = 0;

  auto removed = PruneCheckpoints(folder.path(), 400, {.keep = 1}, {}, FileSystem::Real(), [&calls] {
    return ++calls < 2 ? absl::OkStatus() : absl::AbortedError("generation 2 has the folder");
  });

  EXPECT_TRUE(absl::IsAborted(removed.status())) << removed.status();
  EXPECT_THAT(Steps(folder), ElementsAre(400, 200, 100));
}

// Writes a checkpoint in which one weight is NaN.
std::string WriteNonfinite(const TemporaryFolder& folder, uint64_t step) {
  SmallState state(1);
  std::vector<TensorBytes> tensors = state.tensors();
  std::string bytes(tensors[1].bytes);
  bytes.replace(8, 4, std::string("\x01\x00\x80\x7f", 4));
  tensors[1].bytes = bytes;
  return WriteCheckpoint(folder.path(), SmallManifest(step), tensors, FileSystem::Real())->path;
}

TEST(CatalogTest, NonfiniteCheckpoint_IsMarkedAndSkipped) {
  TemporaryFolder folder;
  WriteStep(folder, 100);
  std::string path = WriteNonfinite(folder, 200);

  auto found = FindCheckpoint(folder.path());

  EXPECT_THAT((*Checkpoint::Open(path))->manifest().nonfinite, ElementsAre("parameter 'ln_f.bias'"));
  EXPECT_EQ(found->checkpoint->manifest().step, 100u);
  EXPECT_THAT(found->damaged, ElementsAre(HasSubstr("values that are not finite (parameter 'ln_f.bias')")));
}

TEST(CatalogTest, NonfiniteValues_AreDetectedInEachType) {
  TemporaryFolder folder;
  struct Case {
    const char* dtype;
    std::string bytes;
    bool finite;
  };
  const Case cases[] = {
      {"F32", std::string("\xff\xff\x7f\x7f", 4), true},
      {"F32", std::string("\x00\x00\x80\xff", 4), false},
      {"F16", std::string("\xff\x7b", 2), true},
      {"F16", std::string("\x00\x7c", 2), false},
      {"BF16", std::string("\x7f\x7f", 2), true},
      {"BF16", std::string("\xc0\x7f", 2), false},
      {"F64", std::string("\xff\xff\xff\xff\xff\xff\xef\x7f", 8), true},
      {"F64", std::string("\x00\x00\x00\x00\x00\x00\xf0\x7f", 8), false},
      {"I32", std::string(4, '\xff'), true},
  };
  for (const Case& c : cases) {
    auto saved = WriteCheckpoint(folder.path(), SmallManifest(1),
                                 {{.name = "w", .role = "parameter", .dtype = c.dtype, .shape = {1}, .bytes = c.bytes}},
                                 FileSystem::Real());
    ASSERT_TRUE(saved.ok()) << saved.status();

    EXPECT_EQ((*Checkpoint::Open(saved->path))->manifest().nonfinite.empty(), c.finite) << c.dtype;
  }
}

TEST(CatalogTest, Prune_KeepEvery_NeverRemovesMultiples) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 150, 200, 250, 300, 350}) WriteStep(folder, step);

  auto removed = PruneCheckpoints(folder.path(), 350, {.keep = 1, .keep_every = 100}, {}, FileSystem::Real());

  EXPECT_THAT(*removed, ElementsAre(250, 150));
  EXPECT_THAT(Steps(folder), ElementsAre(350, 300, 200, 100));
}

TEST(CatalogTest, Prune_NeverRemovesTheLastFiniteCheckpoint) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200}) WriteStep(folder, step);
  for (uint64_t step : {300, 400, 500}) WriteNonfinite(folder, step);

  auto removed = PruneCheckpoints(folder.path(), 500, {.keep = 2}, {}, FileSystem::Real());

  EXPECT_THAT(*removed, ElementsAre(300, 100));
  EXPECT_THAT(Steps(folder), ElementsAre(500, 400, 200));
}

TEST(CatalogTest, Prune_KeepBest_NeverRemovesTheLowestLoss) {
  TemporaryFolder folder;
  WriteStep(folder, 100, 2.5);
  WriteStep(folder, 150, 2.0);
  WriteStep(folder, 200, 2.0);
  WriteStep(folder, 250);
  WriteStep(folder, 300, 2.25);
  WriteStep(folder, 900, 1.0);  // not counted: the run has resumed from an older step

  auto removed = PruneCheckpoints(folder.path(), 300, {.keep = 1, .keep_best = true}, {}, FileSystem::Real());

  EXPECT_THAT(*removed, ElementsAre(250, 200, 100));
  EXPECT_THAT(Steps(folder), ElementsAre(900, 300, 150));
}

TEST(CatalogTest, Prune_KeepBest_FollowsTheCheckpointsThatExist) {
  TemporaryFolder folder;
  WriteStep(folder, 100, 2.5);
  std::filesystem::remove_all(WriteStep(folder, 200, 2.0));  // its save failed
  WriteStep(folder, 300, 2.6);
  FlipByte(WriteStep(folder, 400, 1.0) + "/manifest.json", 100);
  WriteStep(folder, 500);

  auto removed = PruneCheckpoints(folder.path(), 500, {.keep = 1, .keep_best = true}, {}, FileSystem::Real());

  EXPECT_THAT(*removed, ElementsAre(400, 300));
  EXPECT_THAT(Steps(folder), ElementsAre(500, 100));
}

TEST(CatalogTest, Prune_KeepBest_RetainsACheckpointWhoseManifestCannotBeRead_BecauseItMayBeTheBest) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300, 400}) WriteStep(folder, step, 9.0 - static_cast<double>(step) / 100);
  MakeUnreadable(folder / "step-00000100/manifest.json");

  auto removed = PruneCheckpoints(folder.path(), 400, {.keep = 2, .keep_best = true}, {}, FileSystem::Real());

  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(Steps(folder), ElementsAre(400, 300, 100));
}

TEST(CatalogTest, Prune_KeepBest_RemovesNothing_IfTheNewestManifestCannotBeRead) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200, 300}) WriteStep(folder, step, 2.0 + static_cast<double>(step));
  MakeUnreadable(folder / "step-00000300/manifest.json");

  auto removed = PruneCheckpoints(folder.path(), 300, {.keep = 1, .keep_best = true}, {}, FileSystem::Real());

  EXPECT_TRUE(IsFailedRead(removed.status())) << removed.status();
  EXPECT_THAT(Steps(folder), ElementsAre(300, 200, 100));
}

TEST(CatalogTest, Best_IsOpenedByItsName) {
  TemporaryFolder folder;
  WriteStep(folder, 100, 2.5);
  WriteStep(folder, 200, 2.0);
  WriteStep(folder, 300, 2.25);
  std::vector<std::string> skipped;

  auto best = OpenCheckpointOrNewest(folder / "best", skipped);

  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ((*best)->manifest().step, 200u);
  EXPECT_THAT(skipped, IsEmpty());
}

// Writes a checkpoint of `generation`, whose evaluation had this loss on data with this hash.
void WriteEvaluated(const TemporaryFolder& folder, uint64_t step, double loss, uint64_t generation,
                    const std::string& data_hash) {
  SmallState state(static_cast<float>(step));
  Manifest manifest = SmallManifest(step);
  manifest.generation = generation;
  manifest.evaluation = {.loss = loss, .tokens = 100, .data_hash = data_hash};
  ASSERT_TRUE(WriteCheckpoint(folder.path(), manifest, state.tensors(), FileSystem::Real()).ok());
}

TEST(CatalogTest, Best_ComparesOnlyLossesOfTheNewestData) {
  TemporaryFolder folder;
  WriteEvaluated(folder, 100, 0.5, 1, "");
  WriteEvaluated(folder, 200, 1.0, 1, "old");
  WriteEvaluated(folder, 300, 2.0, 2, "new");
  WriteEvaluated(folder, 400, 2.5, 2, "new");

  EXPECT_EQ(FindBest(folder.path())->value().step, 300u);
}

TEST(CatalogTest, Best_IgnoresTheCheckpointsOfAnAbandonedBranch) {
  TemporaryFolder folder;
  WriteEvaluated(folder, 100, 3.0, 1, "data");
  WriteEvaluated(folder, 200, 2.5, 3, "data");
  // Generation 3 continued from step 100 or before, so generation 2 is abandoned.
  WriteEvaluated(folder, 300, 1.0, 2, "data");

  EXPECT_EQ(FindBest(folder.path())->value().step, 200u);
}

TEST(CatalogTest, Best_WithoutAnEvaluation_IsNotFound) {
  TemporaryFolder folder;
  WriteStep(folder, 100);
  std::vector<std::string> skipped;

  const absl::Status status = OpenCheckpointOrNewest(folder / "best", skipped).status();

  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("train.evaluate.every_steps"));
  EXPECT_FALSE(FindBest(folder.path())->has_value());
}

TEST(CatalogTest, Prune_KeepOfZero_KeepsAll) {
  TemporaryFolder folder;
  for (uint64_t step : {100, 200}) WriteStep(folder, step);

  EXPECT_THAT(*PruneCheckpoints(folder.path(), 200, {}, {}, FileSystem::Real()), IsEmpty());
  EXPECT_THAT(Steps(folder), ElementsAre(200, 100));
}

}  // namespace
}  // namespace trainyard
