#include "worker/trainer/kernel_choice.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/files.h"
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
