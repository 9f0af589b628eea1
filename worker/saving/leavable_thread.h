// A thread that may hang in a system call, on a disk that does not answer: its owner waits a moment for its end and
// then leaves it behind. So it must own, by shared pointers, whatever it uses.
//
//   thread_ = std::make_unique<LeavableThread>([state = state_] { Serve(*state); });
//   ...                 its owner tells it to end
//   thread_.reset();
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace trainyard {

class LeavableThread {
 public:
  explicit LeavableThread(std::function<void()> body);
  // Returns when the body has, or after two seconds. REQUIRES: the body was told to end.
  ~LeavableThread();
  LeavableThread(const LeavableThread&) = delete;
  LeavableThread& operator=(const LeavableThread&) = delete;

 private:
  struct End;
  const std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace trainyard
