// The complete worker daemon: the core, and the parts that carry out its effects. One event thread takes events from a
// bounded queue, passes them to the core and carries out the effects in order; sessions, links and processes have
// threads of their own, which only post events.
//
//   Daemon daemon(config, Clock::GetSteadyClock());
//   RETURN_IF_ERROR(daemon.Start());
//   daemon.RequestLeave(...)   // from any thread
//   int exit_code = daemon.AwaitEnd();
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/agent/config.h"
#include "worker/agent/core.h"
#include "worker/agent/event_queue.h"
#include "worker/agent/free_port.h"
#include "worker/agent/health_server.h"
#include "worker/agent/home.h"
#include "worker/agent/link_server.h"
#include "worker/agent/log_pusher.h"
#include "worker/agent/machine_claim.h"
#include "worker/agent/metrics.h"
#include "worker/agent/outbox_writer.h"
#include "worker/agent/process_probe.h"
#include "worker/agent/process_table.h"
#include "worker/agent/session.h"
#include "worker/agent/snapshot_folder.h"
#include "worker/agent/task_thread.h"
#include "worker/agent/value_cache.h"
#include "worker/agent/value_relay.h"

namespace trainyard::agent {

class Daemon {
 public:
  // Does not own `clock`; it must outlive this object.
  Daemon(Config config, Clock& clock);
  // Trainers continue to run.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Claims the state folder, finds the trainers of earlier incarnations, listens for trainers and begins to dial.
  // Possible errors: those of Home::Acquire, OutboxStorage::Read, ReadOutboxFile, and the Start functions of
  // MetricsEndpoint, HealthServer and LinkServer.
  absl::Status Start();

  // Thread-safe.
  void RequestLeave(Leaving how) { Post(LeaveRequested{how}); }

  // Waits until the core has decided to leave; returns the exit code. Call once.
  int AwaitEnd();

  const std::string& socket() const { return socket_; }
  // host:port; empty: not served.
  std::string metrics_address() const { return endpoint_ == nullptr ? "" : endpoint_->address(); }
  std::string health_address() const { return health_ == nullptr ? "" : health_->address(); }

 private:
  std::string ReadCluster() const;
  absl::StatusOr<CoreOptions> MakeCoreOptions();
  absl::Status StartEndpoints();
  StackAnswer RequestTrainerStack(const ExamineProcess& request, ProcessExaminer::Pause pause) const;
  void CheckDisk();
  void CheckHome();
  void ApplyHomeCheck(const HomeChecked& checked);
  void FindAddress();
  void FindSnapshotFolder();
  void RemoveAbandonedSnapshots();
  void Post(Event event) { events_.Post(std::move(event)); }
  void Run();

  // Each overload carries out one kind of effect.
  void Do(Dial& effect);
  void Do(HangUp& effect) { session_->HangUp(effect.reason); }
  void Do(SendToCoordinator& effect);
  void Do(StoreFacts& effect) { writer_->Write(std::move(effect)); }
  void Do(SendLinkMessage& effect) { links_->Send(effect.link, std::move(effect.message)); }
  void Do(CloseLink& effect) { links_->Close(effect.link, effect.status); }
  void Do(StartProcess& effect) { processes_->Start(std::move(effect)); }
  void Do(FindMaster& effect);
  void Do(SignalProcess& effect) { processes_->Signal(effect.id, effect.signal, effect.to_group); }
  void Do(SampleProcesses& effect);
  void Do(ExamineProcess& effect) { examiner_->Examine(effect); }
  void Do(CheckPath& effect);
  void Do(MarkReported& effect) { processes_->MarkReported(effect.id); }
  void Do(AdmitTrainer& effect);
  void Do(SealGroup& effect) { relay_->Seal(effect.group); }
  void Do(EndGroup& effect);
  void Do(StartLogs& effect) { logs_->Start(effect.request, session_->channel()); }
  void Do(StopLogs& effect) { logs_->Stop(effect.request_id); }
  void Do(ForgetLogs& effect) { logs_->Remove(effect.request_id); }
  void Do(RememberCluster& effect);
  void Do(KeepSnapshots& effect);
  void Do(Log& effect);
  void Do(Leave& effect);

  const Config config_;
  const MachineClaim claim_;
  Clock& clock_;
  std::shared_ptr<Home> home_;                 // state folder and socket
  std::string socket_;                         // where trainers connect
  std::shared_ptr<SnapshotFolder> snapshots_;  // null: none

  EventQueue events_;

  // Used by the event thread only.
  std::unique_ptr<Core> core_;
  std::optional<int> exit_code_;
  PortChooser ports_;
  bool removes_snapshots_ = false;  // whether AwaitEnd removes all snapshots
  bool measures_memory_ = false;    // a measurement of the memory of ranks is under way
  bool finds_address_ = false;      // the data address is being looked up

  // In the order of their dependencies: later parts use earlier ones. Only the relay uses a later one, `session_`.
  ValueCache cache_;
  WorkerMetrics metrics_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::unique_ptr<HealthServer> health_;
  std::unique_ptr<OutboxStorage> storage_;
  std::unique_ptr<OutboxWriter> writer_;
  std::unique_ptr<ValueRelay> relay_;
  std::unique_ptr<ProcessTable> processes_;
  std::unique_ptr<ProcessExaminer> examiner_;
  std::unique_ptr<LinkServer> links_;
  std::unique_ptr<LogPusher> logs_;
  std::unique_ptr<Session> session_;
  // The free space on the disk of the state folder; the thread `disk_` measures it.
  struct DiskCheck {
    std::atomic<uint64_t> free_bytes = 0;
    std::atomic<bool> under_way = false;
  };
  const std::shared_ptr<DiskCheck> disk_check_ = std::make_shared<DiskCheck>();
  // Used by the event thread only: when to check `home_` next, and when the check under way began (infinite: none).
  absl::Time check_home_at_ = absl::InfinitePast();
  absl::Time checking_since_ = absl::InfiniteFuture();
  // For calls that may hang, on a disk or a name server.
  std::unique_ptr<TaskThread> home_checks_;       // the state folder, once a second
  std::unique_ptr<TaskThread> disk_;              // the disk of the state folder
  std::unique_ptr<TaskThread> memory_;            // for reading the memory of ranks, which may take long
  std::unique_ptr<TaskThread> paths_;             // the disks of paths that the coordinator requests
  std::unique_ptr<TaskThread> addresses_;         // the name server
  std::unique_ptr<TaskThread> snapshot_removal_;  // removing a large file from memory takes a while
  std::thread thread_;
};

}  // namespace trainyard::agent
