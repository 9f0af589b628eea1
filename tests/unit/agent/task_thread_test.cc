// Work that may hang, off the event thread.
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

TEST(TaskThread, HangingTask_LimitsTheQueue_AndNeitherDelaysDestructionNorAnswersAfterIt) {
  auto hung = std::make_shared<absl::Notification>();
  auto let_go = std::make_shared<absl::Notification>();
  auto over = std::make_shared<absl::Notification>();
  bool answered = false;
  {
    TaskThread thread;
    ASSERT_TRUE(thread.Post([=]() -> std::function<void()> {
      hung->Notify();
      let_go->WaitForNotification();
      // The pending task holds this until it is done or dropped.
      std::shared_ptr<void> last(nullptr, [over](void*) { over->Notify(); });
      return [last] {};
    }));
    hung->WaitForNotification();
    int taken = 0;
    while (thread.Post([] { return 0; }, [&](int) { answered = true; })) ++taken;
    EXPECT_EQ(taken, 64);
  }
  let_go->Notify();
  over->WaitForNotification();

  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace trainyard::agent
