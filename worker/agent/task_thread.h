// A thread for work that may hang (on a disk, on a network file system), so that the event thread never hangs.
// Bounded: refuses tasks when too many wait. The destructor waits one second for a task that hangs, then leaves it
// behind and drops its result, so a task must own everything it uses.
//
//   bool accepted = disk.Post([path] { return FileExists(path); }, [this](bool exists) { ... });
//
// Thread-safe. `done` is called from the thread, with a mutex held: it must not call Post of the same TaskThread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/steady_cond_var.h"

namespace trainyard::agent {

class TaskThread {
 public:
  // Runs on the thread. The function that it returns uses the result, and is called unless this object was destroyed.
  using Task = std::function<std::function<void()>()>;

  TaskThread();
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Returns false if too many tasks wait.
  bool Post(Task task);
  template <typename Work, typename Done>
  bool Post(Work work, Done done) {
    return Post([work = std::move(work), done = std::move(done)]() mutable -> std::function<void()> {
      return [result = work(), done] { done(result); };
    });
  }

 private:
  struct State {
    absl::Mutex mu;
    SteadyCondVar changed;
    std::deque<Task> tasks ABSL_GUARDED_BY(mu);
    bool stopping ABSL_GUARDED_BY(mu) = false;
    bool ended ABSL_GUARDED_BY(mu) = false;
  };
  static void Run(State& state);

  const std::shared_ptr<State> state_;
};

}  // namespace trainyard::agent
