// A thread that may hang in a system call, on a disk that does not answer. Its owner waits a moment for it to end and
// then leaves it behind. The thread must therefore own, by shared pointers, everything that it uses.
//
//   thread_ = std::make_unique<LeavableThread>([state = state_] { Serve(*state); });
//   ...                 // the owner signals, through `state_`, that the body must return
//   thread_.reset();
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace trainyard {

class LeavableThread {
 public:
  explicit LeavableThread(std::function<void()> body);
  // Returns when the body has returned, or after two seconds. REQUIRES: the owner has signalled that the body must
  // return.
  ~LeavableThread();
  LeavableThread(const LeavableThread&) = delete;
  LeavableThread& operator=(const LeavableThread&) = delete;

 private:
  struct End;
  const std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace trainyard
