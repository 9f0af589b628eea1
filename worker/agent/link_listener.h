// The Unix sockets by which trainers find the daemon: listens, and hands on what it accepts. gRPC could listen by
// itself, but a socket whose path was removed (a folder that logout or a cleaner took) then stays deaf for good. This
// one can be made again while every existing connection continues.
//
//   ASSIGN_OR_RETURN(auto listener, LinkListener::Listen(options));   // trainers may dial; they wait
//   listener->Start([](int listener_fd, int fd) { ... });             // and are served
//   listener->Recreate();                                            // now and then
//   listener->Stop();
//
// Thread-safe; one thread of its own accepts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/private_folder.h"

namespace trainyard::agent {

struct LinkListenerOptions {
  // In the order of preference: the first one that can be listened at is taken. Their folders are the owner's alone.
  std::vector<std::string> candidates;
  // Where trainers of an earlier life look for the daemon. One that cannot be listened at is tried again with
  // Recreate.
  std::set<std::string> earlier = {};
};

class LinkListener {
 public:
  using Accept = std::function<void(int listener_fd, int fd)>;

  // Replaces what lies at the paths. Possible errors: Unavailable: none of the candidates can be listened at; the
  // message says why for each.
  static absl::StatusOr<std::shared_ptr<LinkListener>> Listen(const LinkListenerOptions& options);
  // Stops, and removes the sockets.
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  // Where trainers that are started now find the daemon.
  const std::string& path() const { return path_; }

  // `accept` is called on the listener's thread and owns `fd`.
  void Start(Accept accept);
  void Stop();

  // Makes those sockets again whose paths lead to them no more, and their folders where only these are missing. True:
  // there was something to do. Possible errors: that of `path()`, when trainers cannot find the daemon now.
  absl::StatusOr<bool> Recreate();

 private:
  struct Socket {
    std::string path;
    int fd = -1;
    FileId id = {};
  };

  LinkListener();
  absl::Status Open(Socket& socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Remove(Socket& socket);
  std::vector<int> Listeners();
  void Run();
  // False: there is no descriptor left now.
  bool AcceptFrom(int listener);

  std::string path_;
  Accept accept_;
  const int wake_fd_;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::vector<Socket> sockets_ ABSL_GUARDED_BY(mu_);  // the first is that of `path_`
  std::vector<int> replaced_ ABSL_GUARDED_BY(mu_);    // closed by the thread, which may be waiting at them
  std::thread thread_;
};

}  // namespace trainyard::agent
