// The embedded default of `trainctl run`: a coordinator and a worker daemon of its own, for the life of one job, on
// this machine. The same programs, protocol and job file as on a cluster; only who starts them differs.
//
// They are for the user who started them: the coordinator listens on a Unix socket in a folder of mode 0700, and
// nothing of theirs has a port.
//
// Each daemon runs in a session of its own and holds the reading end of a pipe, the lifeline, whose writing end this
// process alone holds. When the writing end closes, by Stop or by the death of this process, however it comes, daemons
// and shims stop what they run and exit. All their descendants become children of this process, so Stop knows when the
// last is gone.
//
//   ASSIGN_OR_RETURN(auto cluster, PrivateCluster::Start({.folder = folder, .slots = 2}));
//   ... Connection::Open({.address = cluster->address()}) ...
//   RETURN_IF_ERROR(cluster->Stop());
//
// A holder that is about to go but wants the job to go on says LetGo first (common/lifeline.h): then nothing ends with
// it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/poll_thread.h"

namespace trainyard::client {

struct PrivateClusterOptions {
  std::string folder;  // for the daemons' state and logs; made if it is not there
  uint32_t slots = 1;
  std::string binary_folder;  // of trainyard-coordinator and trainyard-worker
};

class PrivateCluster {
 public:
  // What its one host is called.
  static constexpr char kHostName[] = "local";

  // Starts the coordinator, waits until it serves, then starts the daemon, which attaches in its own time. REQUIRES:
  // BlockSignals was called. Possible errors: Internal: a daemon did not start; the message ends with its last words.
  static absl::StatusOr<std::unique_ptr<PrivateCluster>> Start(const PrivateClusterOptions& options);
  // As Stop.
  ~PrivateCluster();

  // Of the coordinator: unix:PATH.
  const std::string& address() const { return address_; }
  // Where the output of rank r of generation g lies: ranks/<job>.g<g>.r<r>/.
  std::string ranks_folder() const;

  // From now on `on_death` is called, on another thread and at most once, when a daemon ends by itself, with a
  // sentence.
  void WatchDaemons(std::function<void(const std::string&)> on_death);

  // Ends everything and waits for the end of all descendants. Safe to call again. Possible errors: Internal: something
  // had to be killed, or could not be.
  absl::Status Stop();

  // From now on this process may end without ending anything: the daemons are ordinary ones, and the job goes on.
  // Possible errors: FailedPrecondition: the lifeline has been closed already, everything is being stopped.
  absl::Status LetGo();

  // Of the daemons, for whoever ends them once they have been let go.
  pid_t coordinator_pid() const { return coordinator_; }
  pid_t worker_pid() const { return worker_; }

  // Whether one of the daemons has ended.
  bool DaemonEnded() const;

  // Closes the lifeline and waits for nothing: what is running ends by itself. For a second Ctrl-C. Thread-safe.
  void Abandon();

 private:
  explicit PrivateCluster(const PrivateClusterOptions& options) : options_(options) {}
  absl::StatusOr<std::string> ChooseSocket() const;
  absl::Status StartCoordinator();
  absl::Status StartWorker();
  absl::Status ReadAddress(int fd);
  std::string Log(absl::string_view daemon) const;

  const PrivateClusterOptions options_;
  std::string address_;
  int lifeline_read_ = -1;
  std::atomic<int> lifeline_write_{-1};  // closed by whoever takes it out first
  pid_t coordinator_ = 0, worker_ = 0;
  int coordinator_fd_ = -1, worker_fd_ = -1;  // pidfds
  bool stopped_ = false;
  std::unique_ptr<PollThread> watcher_;  // uses the above, so it ends first
};

}  // namespace trainyard::client
