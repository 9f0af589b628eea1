// The trainers' processes on this host: starts shims, follows them until they end, signals trainers. One thread of its
// own does all of it and posts what it sees as events for the core.
//
// A shim is followed through its rank folder and its pidfd, never as a child, so that a shim started by an earlier
// incarnation of the daemon is followed in the same way as one started by this incarnation.
//
//   ProcessTable table(options, [&](Event event) { queue.Post(std::move(event)); });
//   table.FindAll();      // before the coordinator is dialed: ProcessFound for each rank folder, then AllFound
//   table.Start(start);   // ProcessStarted or ProcessEnded follow
//
// Thread-safe. `post` is called from the table's thread, and in FindAll from the caller's.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/agent/events.h"
#include "worker/agent/memory_kills.h"
#include "worker/agent/rank_folder.h"

namespace trainyard::agent {

struct ProcessTableOptions {
  std::string ranks;    // the folder of rank folders
  std::string shim;     // absolute path of trainyard-shim
  std::string trainer;  // absolute path of the trainer
  std::string link;     // path of the daemon's socket
  // Called on the table's thread before each start. Returns OK, or an error that says why no trainer can be started at
  // the moment. Such an error counts as temporary (TrainerExited.may_pass).
  std::function<absl::Status()> check = [] { return absl::OkStatus(); };
  // Returns the folder in memory for snapshots; empty: none.
  std::function<std::string()> snapshots = [] { return std::string(); };
  int lifeline_fd = -1;
  uint64_t log_bytes_per_rank = 64 << 20;
  FolderLimits folder_limits = {};
  // Called on the table's thread each time that old rank folders may have been removed, with the totals of those that
  // are stored.
  std::function<void(const RankFolders&)> on_pruned = [](const RankFolders&) {};
};

class ProcessTable {
 public:
  using Post = std::function<void(Event)>;

  // REQUIRES: SIGCHLD is blocked in every thread of the process.
  ProcessTable(ProcessTableOptions options, Post post);
  // Ends the thread; the processes continue.
  ~ProcessTable();
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  // Finds the rank folders of earlier incarnations, then posts AllFound. REQUIRES: called once, before Start.
  void FindAll();

  void Start(StartProcess start);
  // With `to_group`, signals all processes of the trainer's group; SIGKILL always does.
  void Signal(const TrainerId& id, int signal, bool to_group = false);
  void MarkReported(const TrainerId& id);

 private:
  // A shim that is running, and its trainer.
  struct Followed {
    TrainerId id;
    std::string folder;
    pid_t shim_pid = 0;
    int pidfd = -1;
    std::optional<PidRecord> pids = std::nullopt;
    int pending_signal = 0;  // arrived before the trainer's pid was known
    bool pending_to_group = false;
    absl::Time since;               // when the shim was started or found
    MemoryKills memory_kills = {};  // the counters at the time when its pids were first seen
  };
  using Command = std::function<void()>;

  void Run();
  void Enqueue(Command command);
  void RunCommands();
  void StartNow(const StartProcess& start);
  absl::StatusOr<LaunchRecord> MakeLaunch(const StartProcess& start, const std::string& folder) const;
  void ReportStartFailed(const TrainerId& id, const absl::Status& why, bool may_pass);
  void SignalNow(const TrainerId& id, int signal, bool to_group);
  absl::Status Spawn(const std::string& folder, pid_t* pid) const;
  void Follow(Followed followed);
  // Returns whether the shim is still running.
  bool Poll(Followed& followed, bool shim_ended);
  void FindPids(Followed& followed);
  // Posts how the process ended. Returns whether the kernel has killed it for lack of memory, as far as the counters
  // show; `followed.memory_kills` then has their present values.
  bool Finish(Followed& followed);
  std::string FolderOf(const TrainerId& id) const;

  const ProcessTableOptions options_;
  const Post post_;
  const int wake_fd_;
  const int child_fd_;

  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Used by the thread only.
  std::map<TrainerId, Followed> followed_;

  std::thread thread_;
};

}  // namespace trainyard::agent
