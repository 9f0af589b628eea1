#include "worker/agent/task_thread.h"

#include <thread>

namespace trainyard::agent {
namespace {

constexpr size_t kWaitingMax = 64;
constexpr absl::Duration kEndWait = absl::Seconds(1);

}  // namespace

TaskThread::TaskThread() : state_(std::make_shared<State>()) {
  std::thread([state = state_] { Run(*state); }).detach();
}

TaskThread::~TaskThread() {
  absl::MutexLock lock(&state_->mu);
  state_->stopping = true;
  state_->changed.SignalAll();
  state_->changed.AwaitFor(&state_->mu, kEndWait,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) { return state_->ended; });
}

bool TaskThread::Post(Task task) {
  absl::MutexLock lock(&state_->mu);
  if (state_->tasks.size() >= kWaitingMax) return false;
  state_->tasks.push_back(std::move(task));
  state_->changed.SignalAll();
  return true;
}

void TaskThread::Run(State& state) {
  absl::MutexLock lock(&state.mu);
  while (true) {
    state.changed.AwaitFor(&state.mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
      return state.stopping || !state.tasks.empty();
    });
    if (state.stopping) break;
    Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    state.mu.Unlock();
    std::function<void()> done = task();
    state.mu.Lock();
    // The mutex is held, so the destructor waits until `done` has returned: `done` may use what outlives this object.
    if (!state.stopping && done) done();
  }
  state.ended = true;
  state.changed.SignalAll();
}

}  // namespace trainyard::agent
