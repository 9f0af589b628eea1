// Work that may hang runs outside of the event thread.
#include "worker/agent/task_thread.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"

namespace trainyard::agent {
namespace {

TEST(TaskThread, RunsTasksInOrderAndPassesOnTheResult) {
  TaskThread thread;
  absl::Notification done;
  int sum = 0;

  EXPECT_TRUE(thread.Post([] { return 40; }, [&](int result) { sum += result; }));
  EXPECT_TRUE(thread.Post([] { return 2; },
                          [&](int result) {
                            sum += result;
                            done.Notify();
                          }));
  done.WaitForNotification();

  EXPECT_EQ(sum, 42);
}

TEST(TaskThread, HangingTask_LimitsTheQueue_AndNeitherDelaysDestruction_NorAnswersAfterDestruction) {
  auto hung = std::make_shared<absl::Notification>();
  auto released = std::make_shared<absl::Notification>();
  auto dropped = std::make_shared<absl::Notification>();
  bool answered = false;
  {
    TaskThread thread;
    ASSERT_TRUE(thread.Post([=]() -> std::function<void()> {
      hung->Notify();
      released->WaitForNotification();
      // The continuation owns `last` until it has run or was dropped.
      std::shared_ptr<void> last(nullptr, [dropped](void*) { dropped->Notify(); });
      return [last] {};
    }));
    hung->WaitForNotification();
    int accepted = 0;
    while (thread.Post([] { return 0; }, [&](int) { answered = true; })) ++accepted;
    EXPECT_EQ(accepted, 64);
  }
  released->Notify();
  dropped->WaitForNotification();

  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace trainyard::agent
