// The tests check which clock the standard library passes to the C library, so they need not change the system clock.
#include "common/steady_cond_var.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

std::atomic<int> steady_waits = 0;
std::atomic<int> wall_waits = 0;

}  // namespace

extern "C" int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                                      const struct timespec* until) {
  using Function = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_cond_clockwait"));
  (clock == CLOCK_MONOTONIC ? steady_waits : wall_waits)++;
  return original(cond, mutex, clock, until);
}

extern "C" int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const struct timespec* until) {
  using Function = int (*)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_cond_timedwait"));
  wall_waits++;
  return original(cond, mutex, until);
}

namespace trainyard {
namespace {

TEST(SteadyCondVar, TimedWait_UsesTheSteadyClock_AndEndsWithoutTheCondition) {
  absl::Mutex mu;
  SteadyCondVar changed;
  absl::MutexLock lock(&mu);
  const int steady_before = steady_waits;
  const int wall_before = wall_waits;

  EXPECT_FALSE(changed.AwaitFor(&mu, absl::Milliseconds(1), [] { return false; }));
  changed.WaitFor(&mu, absl::Milliseconds(1));

  EXPECT_GE(steady_waits - steady_before, 2);
  EXPECT_EQ(wall_waits, wall_before);
}

TEST(SteadyCondVar, SignalAll_WakesAllWaitingThreads_WithTheMutexHeld) {
  absl::Mutex mu;
  SteadyCondVar changed;
  int turn = 0;
  std::vector<int> order;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      absl::MutexLock lock(&mu);
      EXPECT_TRUE(
          changed.AwaitFor(&mu, i % 2 == 0 ? absl::Minutes(1) : absl::InfiniteDuration(), [&] { return turn == i; }));
      mu.AssertHeld();
      order.push_back(i);
      ++turn;
      changed.SignalAll();
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace trainyard
