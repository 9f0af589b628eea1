// The metrics of a run folder whose disk does not answer, or that another generation has claimed.
#include "worker/trainer/metrics_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<MetricsFile> NewMetricsFile(const std::string& path) {
  return MetricsFile::Open(path, /*last_step=*/0).value_or(nullptr);
}

TEST(MetricsThreadTest, FolderThatDoesNotAnswer_DelaysNoCaller_AndGetsEveryLineLater) {
  const TemporaryFolder folder;
  const std::string path = folder / kMetricsName;
  absl::Notification reached, released;
  SimulatedClock clock;
  MetricsThread metrics(
      NewMetricsFile(path),
      [&] {
        if (!reached.HasBeenNotified()) reached.Notify();
        released.WaitForNotification();
        return absl::OkStatus();
      },
      clock);

  metrics.Write("1\n");
  reached.WaitForNotification();
  metrics.Write("2\n");
  const bool done_in_time = metrics.Await(absl::ZeroDuration());
  const std::string early_warning = metrics.TakeWarning();
  clock.AdvanceTime(absl::Seconds(11));
  const std::string warning = metrics.TakeWarning(), second_warning = metrics.TakeWarning();
  const bool done_later = metrics.Await(absl::Seconds(10));  // returns immediately, because 11 s have passed
  const absl::Status fence = metrics.fence();
  const std::string lines = *ReadFile(path);
  released.Notify();

  EXPECT_FALSE(done_in_time);
  EXPECT_FALSE(done_later);
  EXPECT_EQ(fence, absl::OkStatus());
  EXPECT_THAT(lines, IsEmpty());
  EXPECT_THAT(early_warning, IsEmpty());
  EXPECT_THAT(warning, HasSubstr("checkpoint.dir has not answered for 11s"));
  EXPECT_THAT(second_warning, IsEmpty());
  EXPECT_TRUE(metrics.Await(absl::InfiniteDuration()));
  EXPECT_EQ(*ReadFile(path), "1\n2\n");
}

TEST(MetricsThreadTest, FenceOfAnotherGeneration_IsReported_AndNoLineIsAddedAfterIt) {
  const TemporaryFolder folder;
  const std::string path = folder / kMetricsName;
  std::atomic<bool> fenced = false;
  MetricsThread metrics(NewMetricsFile(path), [&fenced] {
    return fenced ? absl::AbortedError("the folder belongs to generation 2 now") : absl::OkStatus();
  });

  metrics.Write("1\n");
  ASSERT_TRUE(metrics.Await(absl::InfiniteDuration()));
  const absl::Status before = metrics.fence();
  fenced = true;
  metrics.Check();
  ASSERT_TRUE(metrics.Await(absl::InfiniteDuration()));
  const absl::Status after = metrics.fence();
  metrics.Write("2\n");
  ASSERT_TRUE(metrics.Await(absl::InfiniteDuration()));

  EXPECT_EQ(before, absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(after)) << after;
  EXPECT_EQ(*ReadFile(path), "1\n");
}

TEST(MetricsThreadTest, RemainingLines_AreWrittenBeforeTheEnd) {
  const TemporaryFolder folder;
  const std::string path = folder / kMetricsName;

  {
    MetricsThread metrics(NewMetricsFile(path), [] { return absl::OkStatus(); });
    metrics.Write("1\n");
    metrics.Write("2\n");
  }

  EXPECT_EQ(*ReadFile(path), "1\n2\n");
}

TEST(MetricsThreadTest, WithoutAFile_TheFenceIsCheckedNevertheless) {
  MetricsThread metrics(nullptr, [] { return absl::AbortedError("the folder belongs to generation 2 now"); });

  metrics.Write("1\n");
  ASSERT_TRUE(metrics.Await(absl::InfiniteDuration()));

  EXPECT_TRUE(absl::IsAborted(metrics.fence())) << metrics.fence();
}

}  // namespace
}  // namespace trainyard
