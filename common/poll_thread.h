// A thread that waits on file descriptors and calls back. A program uses it to notice a signal, the exit of a process
// or the end of its lifeline while its main thread is inside a call.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace trainyard {

class PollThread {
 public:
  struct Watch {
    int fd;
    // Called on the thread whenever `fd` is readable or its other end is closed. Returns false to stop watching it.
    std::function<bool()> on_ready;
  };

  // Does not own the descriptors, which must outlive this object. Negative descriptors are ignored.
  explicit PollThread(std::vector<Watch> watches);
  // Ends the thread; no callback runs afterwards. Must not be called from a callback.
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
