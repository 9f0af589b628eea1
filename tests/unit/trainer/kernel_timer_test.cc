#include "worker/trainer/kernel_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace trainyard {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(20);

bool HasChildren() { return waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

std::unique_ptr<KernelTimer> Start(KernelTimer::TimeShapes time_shapes) {
  absl::StatusOr<std::unique_ptr<KernelTimer>> timer = KernelTimer::Start(std::move(time_shapes));
  EXPECT_TRUE(timer.ok()) << timer.status();
  return timer.ok() ? *std::move(timer) : nullptr;
}

TEST(KernelTimer, EachKindIsTimedInAProcessOfItsOwn) {
  const pid_t self = getpid();
  std::unique_ptr<KernelTimer> timer = Start([self](bool with_lever, const std::vector<ProductShape>& shapes) {
    if (getpid() == self) return std::vector<double>{};
    return std::vector<double>(shapes.size(), with_lever ? 1e-3 : 2e-3);
  });
  ASSERT_NE(timer, nullptr);
  const std::vector<ProductShape> shapes = {{.rows = 100, .in = 100, .out = 100}, {.rows = 50, .in = 200, .out = 100}};

  const absl::StatusOr<KernelSpeeds> speeds = timer->Measure(shapes, kLimit);

  ASSERT_TRUE(speeds.ok()) << speeds.status();
  EXPECT_DOUBLE_EQ(speeds->with_lever, 6);
  EXPECT_DOUBLE_EQ(speeds->without, 3);
  EXPECT_GT(speeds->measured_ms, 0);
  timer = nullptr;
  EXPECT_FALSE(HasChildren());
}

TEST(KernelTimer, UnusedTimer_LeavesNoProcess) {
  std::unique_ptr<KernelTimer> timer =
      Start([](bool, const std::vector<ProductShape>&) { return std::vector<double>{1}; });
  ASSERT_NE(timer, nullptr);
  timer = nullptr;
  EXPECT_FALSE(HasChildren());
}

TEST(KernelTimer, ProcessThatFailsOrHangs_IsAnErrorAndIsEnded) {
  const std::vector<ProductShape> shapes = {{.rows = 8, .in = 8, .out = 8}};
  const KernelTimer::TimeShapes broken[] = {
      [](bool, const auto&) -> std::vector<double> { throw std::runtime_error("broken"); },
      [](bool, const auto&) -> std::vector<double> { _exit(3); },
      [](bool, const auto&) -> std::vector<double> {
        return {1, 2};
      },
      [](bool, const auto&) -> std::vector<double> { return {0}; },
      [](bool with_lever, const auto&) -> std::vector<double> { return {with_lever ? 1.0 : -1.0}; },
  };
  for (const KernelTimer::TimeShapes& time_shapes : broken) {
    std::unique_ptr<KernelTimer> timer = Start(time_shapes);
    ASSERT_NE(timer, nullptr);
    EXPECT_TRUE(absl::IsInternal(timer->Measure(shapes, kLimit).status()));
  }
  std::unique_ptr<KernelTimer> timer = Start([](bool with_lever, const auto&) {
    while (with_lever) pause();
    return std::vector<double>{1};
  });
  ASSERT_NE(timer, nullptr);
  EXPECT_TRUE(absl::IsDeadlineExceeded(timer->Measure(shapes, absl::Milliseconds(50)).status()));
  timer = nullptr;
  EXPECT_FALSE(HasChildren());
}

TEST(KernelTimer, ProcessWithSeveralThreads_IsNotForked) {
  std::atomic<bool> ends = false;
  std::thread other([&] { ends.wait(false); });
  const absl::Status status = KernelTimer::Start([](bool, const auto&) { return std::vector<double>{}; }).status();
  ends = true;
  ends.notify_all();
  other.join();

  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

}  // namespace
}  // namespace trainyard
