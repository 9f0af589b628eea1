// The Unix sockets by which trainers find the daemon: listens, and passes on the connections that it accepts. gRPC
// could listen on its own, but a socket whose path was removed (with its folder, at logout or by a cleaner) would then
// stay unreachable permanently. This listener can recreate a socket while every existing connection continues.
//
//   ASSIGN_OR_RETURN(auto listener, LinkListener::Listen(options));   // trainers may connect, but wait
//   listener->Start([](int listener_fd, int fd) { ... });             // accepts their connections
//   listener->Recreate();                                             // periodically
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
  // Paths in order of preference: the first one that works is used. Their folders are accessible to this user only.
  std::vector<std::string> candidates;
  // Paths at which trainers of an earlier incarnation dial. If one cannot be opened, Recreate tries it again.
  std::set<std::string> earlier = {};
};

class LinkListener {
 public:
  using Accept = std::function<void(int listener_fd, int fd)>;

  // Replaces sockets that are at the paths. Possible errors: Unavailable: no candidate works; the message says why for
  // each.
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

  // Recreates the sockets whose paths no longer lead to them, and their folders if they are missing (but not the
  // folders above those). Returns true if it recreated any. Possible errors: Unavailable: the socket at `path()` is
  // gone and cannot be recreated.
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
  // Returns false if the process has no free descriptor.
  bool AcceptFrom(int listener_fd);

  std::string path_;
  Accept accept_;
  const int wake_fd_;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::vector<Socket> sockets_ ABSL_GUARDED_BY(mu_);  // the first is that of `path_`
  std::vector<int> replaced_ ABSL_GUARDED_BY(mu_);    // closed by the thread, because it may be polling them
  std::thread thread_;
};

}  // namespace trainyard::agent
