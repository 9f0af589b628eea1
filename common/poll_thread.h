// A thread that waits on file descriptors and calls back: how a program notices a signal, the end of a process or of
// its lifeline while its main thread is inside a call.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace trainyard {

class PollThread {
 public:
  struct Watch {
    int fd;
    // Called on the thread each time `fd` is readable or its other end is closed; false: watch it no longer.
    std::function<bool()> on_ready;
  };

  // Does not own the descriptors; they must outlive this object. A negative one is never ready.
  explicit PollThread(std::vector<Watch> watches);
  // Ends the thread; no callback runs afterwards. Not to be called from a callback.
  ~PollThread();
  PollThread(const PollThread&) = delete;
  PollThread& operator=(const PollThread&) = delete;

 private:
  void Loop();

  std::vector<Watch> watches_;
  int stop_fd_;
  std::thread thread_;
};

}  // namespace trainyard
