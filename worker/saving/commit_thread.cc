#include "worker/saving/commit_thread.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "worker/saving/commit_state.h"

namespace trainyard {
namespace {

// While this many commits are queued or in progress, the save under way does not count as ended, so no other begins.
constexpr ptrdiff_t kCommitsMax = 2;

}  // namespace

CommitThread::CommitThread(Deps deps) : state_(std::make_shared<State>(std::move(deps))) {
  thread_ = std::make_unique<LeavableThread>([state = state_] { Serve(*state); });
}

CommitThread::~CommitThread() {
  absl::MutexLock lock(&state_->mu);
  state_->closing = true;
  state_->changed.SignalAll();
}

void CommitThread::Serve(State& state) {
  // The thread requests grants before it does other tasks, so that it has requested the grant of the oldest waiting
  // checkpoint at least once before a newer commit can replace that checkpoint. If a request gets no answer, the thread
  // does one task before it repeats the request.
  bool unanswered = false;
  while (true) {
    std::optional<State::Task> task;
    {
      absl::MutexLock lock(&state.mu);
      state.busy = state.committing = false;
      state.changed.SignalAll();
      state.changed.AwaitFor(&state.mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
        return state.closing || !state.tasks.empty() || (state.num_waiting > 0 && !state.generation_ended);
      });
      if (state.closing) return;
      const bool requests_grant = state.num_waiting > 0 && !state.generation_ended && !unanswered;
      if (!requests_grant && !state.tasks.empty()) {
        task = std::move(state.tasks.front());
        state.tasks.pop_front();
      }
      state.busy = task.has_value();
      state.committing = task.has_value() && std::holds_alternative<CommitTask>(*task);
    }
    unanswered = !task.has_value() && !state.RequestGrant();
    if (!task.has_value()) continue;
    if (auto* commit = std::get_if<CommitTask>(&*task)) {
      state.CommitOne(std::move(*commit));
    } else if (auto* removal = std::get_if<State::Removal>(&*task)) {
      state.RemoveFailed(removal->save);
    } else {
      state.Prune(std::get<State::Pruning>(*task).step);
    }
  }
}

void CommitThread::Commit(CommitTask task) {
  absl::MutexLock lock(&state_->mu);
  state_->tasks.push_back(std::move(task));
  state_->changed.SignalAll();
}

void CommitThread::Discard(const SaveKey& save) {
  absl::MutexLock lock(&state_->mu);
  state_->tasks.push_back(State::Removal{save});
  state_->changed.SignalAll();
}

bool CommitThread::AwaitQueueSpace(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return state_->changed.AwaitFor(&state_->mu, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    const auto is_commit = [](const State::Task& task) { return std::holds_alternative<CommitTask>(task); };
    return std::count_if(state_->tasks.begin(), state_->tasks.end(), is_commit) + state_->committing < kCommitsMax;
  });
}

void CommitThread::PruneConfirmed() {
  const uint64_t acknowledged = state_->deps.link.acknowledged();
  absl::MutexLock lock(&state_->mu);
  std::optional<uint64_t> confirmed;
  while (!state_->reported.empty() && state_->reported.front().fact <= acknowledged) {
    confirmed = state_->reported.front().step;
    state_->reported.pop_front();
  }
  if (!confirmed.has_value()) return;
  if (!state_->tasks.empty() && std::holds_alternative<State::Pruning>(state_->tasks.back())) state_->tasks.pop_back();
  state_->tasks.push_back(State::Pruning{*confirmed});
  state_->changed.SignalAll();
}

bool CommitThread::Drain(absl::Duration limit, bool without_grant) {
  absl::MutexLock lock(&state_->mu);
  if (without_grant) {
    state_->without_grant = true;
    state_->changed.SignalAll();
  }
  return state_->changed.AwaitFor(&state_->mu, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    return !state_->busy && state_->tasks.empty() && (state_->num_waiting == 0 || state_->generation_ended);
  });
}

bool CommitThread::AwaitTasks(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return state_->changed.AwaitFor(&state_->mu, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    return !state_->busy && state_->tasks.empty();
  });
}

void CommitThread::Pause(absl::Duration duration) {
  absl::MutexLock lock(&state_->mu);
  state_->changed.AwaitFor(&state_->mu, duration,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) { return state_->closing; });
}

uint64_t CommitThread::unconfirmed_fact() const {
  absl::MutexLock lock(&state_->mu);
  return state_->reported.empty() ? 0 : state_->reported.back().fact;
}

uint64_t CommitThread::num_failed() const {
  absl::MutexLock lock(&state_->mu);
  return state_->failed;
}

uint64_t CommitThread::newest_complete() const {
  absl::MutexLock lock(&state_->mu);
  return state_->newest_complete;
}

uint64_t CommitThread::newest_named() const {
  absl::MutexLock lock(&state_->mu);
  return state_->newest_named;
}

absl::Status CommitThread::TakeFailure() {
  absl::MutexLock lock(&state_->mu);
  return std::exchange(state_->quiet_failure, absl::OkStatus());
}

std::vector<std::string> CommitThread::TakeLines() {
  absl::MutexLock lock(&state_->mu);
  return std::exchange(state_->lines, {});
}

}  // namespace trainyard
