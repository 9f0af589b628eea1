// The private cluster of `trainctl run`, `launch` and `parity`: a coordinator and a worker daemon on this machine.
// Programs, protocol and job file are the same as on a shared cluster, but trainctl starts the daemons.
//
// Only the user who started the daemons can reach them: the coordinator listens on a Unix socket in a folder of mode
// 0700, and no daemon opens a port.
//
// Each daemon runs in its own session and holds the reading end of a pipe, the lifeline; only this process holds the
// writing end. When the writing end is closed, by Stop or because this process ends in any way, daemons and shims stop
// their children and exit. Descendants whose parent has ended become children of this process, so Stop knows when
// the last one has ended.
//
//   ASSIGN_OR_RETURN(auto cluster, PrivateCluster::Start({.folder = folder, .slots = 2}));
//   ... Connection::Open({.address = cluster->address()}) ...
//   RETURN_IF_ERROR(cluster->Stop());
//
// A process that must exit while the job continues calls Detach first (common/lifeline.h): then the daemons and the job
// continue without the process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/poll_thread.h"

namespace trainyard::client {

struct PrivateClusterOptions {
  std::string folder;  // for the daemons' state and logs; created if missing
  uint32_t slots = 1;
  std::string binary_folder;  // contains the programs of coordinator, worker daemon, shim and trainer
};

class PrivateCluster {
 public:
  // The name of the cluster's only host.
  static constexpr char kHostName[] = "local";

  // Starts the coordinator, waits until it is ready, then starts the daemon, which attaches later. REQUIRES:
  // BlockSignals was called. Possible errors: Internal: a daemon did not start; the message ends with its last output
  // lines.
  static absl::StatusOr<std::unique_ptr<PrivateCluster>> Start(const PrivateClusterOptions& options);
  // Calls Stop.
  ~PrivateCluster();

  // The coordinator's address: unix:PATH.
  const std::string& address() const { return address_; }
  // The folder that has a folder for each rank, <job>.g<generation>.r<rank>/, with its output.
  std::string ranks_folder() const;

  // From now on, calls `on_death` with a sentence when a daemon ends on its own. Calls it on another thread, at most
  // once.
  void WatchDaemons(std::function<void(const std::string&)> on_death);
  // After this, `on_death` is not called any more.
  void StopWatching() { watcher_.reset(); }

  // Stops everything and waits until all descendants have ended. Can be called again. Possible errors: Internal: a
  // process had to be killed, or could not be killed.
  absl::Status Stop();

  // From now on this process can exit without stopping anything: the daemons run independently and the job continues.
  // Possible errors: FailedPrecondition: the lifeline is already closed and everything is stopping.
  absl::Status Detach();

  // The daemons' process ids, with which a user can stop them after Detach. Detached daemons exit after their job.
  pid_t coordinator_pid() const { return coordinator_; }
  pid_t worker_pid() const { return worker_; }

  // Returns whether one of the daemons has ended.
  bool DaemonEnded() const;

  // Closes the lifeline without waiting: all processes then end on their own. Used for a second Ctrl-C. Thread-safe.
  void CloseLifeline();

 private:
  explicit PrivateCluster(const PrivateClusterOptions& options) : options_(options) {}
  absl::StatusOr<std::string> ChooseSocket() const;
  absl::Status StartCoordinator();
  absl::Status StartWorker();
  absl::Status ReadAddress(int fd);
  std::string LogPath(absl::string_view daemon) const;

  const PrivateClusterOptions options_;
  std::string address_;
  int lifeline_read_ = -1;
  std::atomic<int> lifeline_write_{-1};  // closed by the first thread that exchanges it for -1
  pid_t coordinator_ = 0, worker_ = 0;
  int coordinator_fd_ = -1, worker_fd_ = -1;  // pidfds
  // The children that this process had before, for example those of a shell script that has replaced itself by trainctl
  // (exec). Stop leaves them alone.
  std::set<pid_t> others_;
  bool stopped_ = false;
  std::unique_ptr<PollThread> watcher_;  // uses the fields above, so it is destroyed first
};

}  // namespace trainyard::client
