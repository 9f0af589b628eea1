// A thread that waits on file descriptors and calls back: how trainctl notices a Ctrl-C and the end of its daemons
// while its main thread is inside a call.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace trainyard::client {

class PollThread {
 public:
  struct Watch {
    int fd;
    // Called on the thread each time `fd` is readable; false: watch it no longer.
    std::function<bool()> on_ready;
  };

  // Does not own the descriptors; they must outlive this object.
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

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this thread and those it will start. Call before any thread is started.
void BlockSignals();

// A descriptor that is readable when SIGINT, SIGTERM or SIGHUP has come; -1 on failure. REQUIRES: BlockSignals.
int NewInterruptFd();
// Takes one signal from it; 0: none.
int TakeInterrupt(int fd);

}  // namespace trainyard::client
