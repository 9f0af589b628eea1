// The lever (numerics/mkl_lever.h) makes MKL use other kernels than those that it chooses for the CPU.
#include "worker/trainer/kernel_choice.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/parity/stores.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

TEST(LeverIsFaster, ReturnsTheExpectationUnlessTheOtherChoiceIsClearlyFaster) {
  EXPECT_TRUE(LeverIsFaster({.with_lever = 200, .without = 100}, /*expected=*/true));
  EXPECT_TRUE(LeverIsFaster({.with_lever = 100, .without = 104}, /*expected=*/true));
  EXPECT_FALSE(LeverIsFaster({.with_lever = 100, .without = 106}, /*expected=*/true));
  EXPECT_FALSE(LeverIsFaster({.with_lever = 104, .without = 100}, /*expected=*/false));
  EXPECT_TRUE(LeverIsFaster({.with_lever = 106, .without = 100}, /*expected=*/false));
}

ModelSizes SmallGpt() {
  ModelSizes sizes;
  sizes.layers = 6;
  sizes.heads = 6;
  sizes.width = 384;
  sizes.context = 256;
  sizes.vocabulary = 256;
  return sizes;
}

TEST(ShapesToTime, AreThoseOfTheModel_OnceForEachSizeAndLimited) {
  const std::vector<ProductShape> shapes = ShapesToTime(SmallGpt(), /*rows=*/4096);

  int64_t multiplications = 0;
  for (const ProductShape& shape : shapes) {
    EXPECT_EQ(shape.rows, 256);
    EXPECT_LE(shape.in, 512);
    EXPECT_LE(shape.out, 512);
    EXPECT_GE(shape.count, 1);
    multiplications += shape.in * shape.out * shape.count;
  }
  EXPECT_LE(shapes.size(), kMaxShapes);
  EXPECT_GE(multiplications, 6 * 12 * 384 * 384);  // a shape that was limited stands for several products
  EXPECT_LE(multiplications, 6 * 16 * 384 * 384);
  EXPECT_EQ(ShapesToTime(SmallGpt(), /*rows=*/32)[0].rows, 32);
}

TEST(ShapesText, IsReadBack_AndOnlyIfItIsWithinTheLimits) {
  const std::vector<ProductShape> shapes = ShapesToTime(SmallGpt(), 4096);
  const absl::StatusOr<std::vector<ProductShape>> read = ParseShapes(ShapesText(shapes));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, shapes);
  for (const char* text : {"", "256x512x512", "256x512x512x0", "256x100000x512x1", "1000x512x512x1", "-1x5x5x1",
                           "1x1x1x1,", "1x1x1x1,1x1x1x1,1x1x1x1,1x1x1x1,1x1x1x1,1x1x1x1,1x1x1x1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseShapes(text).status())) << text;
  }
}

TEST(KernelSpeedsName, DependsOnTheCpuAndOnTheShapes) {
  const std::vector<ProductShape> shapes = DefaultShapes();
  EXPECT_EQ(KernelSpeedsName("cpu", shapes), KernelSpeedsName("cpu", shapes));
  EXPECT_NE(KernelSpeedsName("cpu", shapes), KernelSpeedsName("other", shapes));
  EXPECT_NE(KernelSpeedsName("cpu", shapes), KernelSpeedsName("cpu", ShapesToTime(SmallGpt(), 4096)));
}

// Runs each rank as a thread. `kinds`: the CPUs of the ranks' hosts. `choices`: whether each host has measured that the
// lever is faster. Returns the agreed choice of each rank.
std::vector<bool> Agree(const std::vector<std::string>& kinds, const std::vector<bool>& choices) {
  MemoryStore values;
  std::vector<char> agreed(kinds.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < kinds.size(); ++i) {
    ranks.emplace_back([&, i] {
      const absl::StatusOr<bool> choice =
          AgreeOnLever(values, static_cast<int>(i), kinds[i], choices[i], absl::Seconds(20));
      EXPECT_TRUE(choice.ok()) << choice.status();
      agreed[i] = choice.ok() && *choice;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {agreed.begin(), agreed.end()};
}

TEST(AgreeOnLever, RanksWithEqualCpus_UseTheChoiceOfTheLowestRank) {
  EXPECT_EQ(Agree({"zen", "zen", "zen"}, {true, false, true}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(Agree({"zen", "zen", "zen"}, {false, true, true}), (std::vector<bool>{false, false, false}));
}

TEST(AgreeOnLever, EachKindOfCpu_HasAChoiceOfItsOwn) {
  EXPECT_EQ(Agree({"zen3", "", "zen4", "zen3", "zen4"}, {false, false, true, true, false}),
            (std::vector<bool>{false, false, true, false, true}));
}

// "zen" is a prefix of "zen4"; a key must match as a whole.
TEST(AgreeOnLever, KeysThatBeginAlike_AreDifferent) {
  EXPECT_EQ(Agree({"zen4", "zen"}, {true, false}), (std::vector<bool>{true, false}));
}

TEST(AgreeOnLever, MissingRank_IsAnError) {
  MemoryStore values;
  EXPECT_TRUE(absl::IsDeadlineExceeded(AgreeOnLever(values, 1, "zen", true, absl::Milliseconds(10)).status()));
}

TEST(KernelSpeedsFolder, IsNotInAFolderOfAnotherUser) {
  const TemporaryFolder state;
  setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  EXPECT_EQ(KernelSpeedsFolder().value_or(""), state / "trainyard/kernels");
  if (chown(state.path().c_str(), 65533, 65533) != 0) return;  // only root can change the owner of a folder

  EXPECT_NE(KernelSpeedsFolder().value_or(""), state / "trainyard/kernels");
}

class KernelSpeedsFile : public testing::Test {
 protected:
  absl::StatusOr<KernelSpeeds> Measure() {
    ++measured_;
    return KernelSpeeds{.with_lever = 118.5, .without = 96.25};
  }
  absl::StatusOr<KernelSpeeds> Get() {
    return LoadOrMeasure(path_, [this] { return Measure(); });
  }

  const TemporaryFolder temporary_;
  const std::string path_ = JoinPath(temporary_.path(), "state/trainyard/kernels/cpu");
  std::atomic<int> measured_ = 0;
};

TEST_F(KernelSpeedsFile, IsMeasuredOnceAndStoredInAPrivateFolder) {
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<KernelSpeeds> speeds = Get();
    ASSERT_TRUE(speeds.ok()) << speeds.status();
    EXPECT_EQ(speeds->with_lever, 118.5);
    EXPECT_EQ(speeds->without, 96.25);
  }
  EXPECT_EQ(measured_, 1);
  struct stat folder = {};
  ASSERT_EQ(stat(JoinPath(temporary_.path(), "state/trainyard/kernels").c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
}

TEST_F(KernelSpeedsFile, OldestAreRemovedWhenThereAreMany) {
  const std::string folder = JoinPath(temporary_.path(), "state/trainyard/kernels");
  for (int i = 0; i < 260; ++i) {
    ASSERT_TRUE(LoadOrMeasure(JoinPath(folder, absl::StrCat("cpu-", i)), [this] { return Measure(); }).ok());
  }
  EXPECT_EQ(ReadAllKernelSpeeds(folder, "cpu").size(), 256u);
  EXPECT_TRUE(FileExists(JoinPath(folder, "cpu-259")));
  EXPECT_TRUE(ReadAllKernelSpeeds(folder, "other").empty());
  EXPECT_TRUE(ReadAllKernelSpeeds("/nonexistent", "cpu").empty());
}

TEST_F(KernelSpeedsFile, RanksThatStartTogetherMeasureOnce) {
  std::vector<std::thread> ranks;
  for (int i = 0; i < 4; ++i) ranks.emplace_back([this] { EXPECT_TRUE(Get().ok()); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(measured_, 1);
}

TEST_F(KernelSpeedsFile, InvalidFileCausesANewMeasurement) {
  ASSERT_TRUE(Get().ok());
  for (const char* damaged : {"", "118", "fast slow", "0 5", "-1 nan"}) {
    ASSERT_TRUE(WriteFileAtomically(path_, damaged).ok());
    measured_ = 0;
    EXPECT_TRUE(Get().ok());
    EXPECT_EQ(measured_, 1) << "'" << damaged << "'";
  }
}

TEST_F(KernelSpeedsFile, FailedMeasurementIsReportedAndNotStored) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(LoadOrMeasure(path_, []() -> absl::StatusOr<KernelSpeeds> {
                                         return absl::DeadlineExceededError("late");
                                       }).status()));
  EXPECT_FALSE(FileExists(path_));
}

}  // namespace
}  // namespace trainyard
