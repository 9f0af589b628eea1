// The daemon's core makes all decisions of the worker daemon: which trainers to start and to end, what to report to the
// coordinator, what to send to the trainers. Events in, effects out; no thread, lock, clock or I/O, so that a test or a
// simulation can drive it exactly as the daemon's one event thread does:
//
//   for (Effect& effect : core.Handle(event, now)) CarryOut(effect);
//   // call Handle(Tick{}, now) no later than core.NextWake()
//
// The core makes the host match the newest desired state. The states of a trainer:
//
//   desired ─StartProcess─▶ STARTING ─ProcessStarted─▶ RUNNING ─ProcessEnded─▶ ENDED ─fact acknowledged─▶ reported
//                               │                        ▲   (its link may break and reconnect meanwhile)
//                               └────────────────────────┼── ProcessEnded: could not be started
//   rank folder of an earlier incarnation ──ProcessFound─┘
//
// Guarantees (docs/decisions/0001-spine.md): a trainer is started once. A running trainer is ended only by a desired
// state that this incarnation of the daemon has received, by a LeaveRequested that ends trainers, or because it is a
// command that uses more memory than its job allows. The exit of a trainer is reported after everything that the
// trainer reported. A fact is acknowledged to the trainer that reported it only after the coordinator has acknowledged
// it. Loss of contact, in any direction, ends no trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/events.h"
#include "worker/agent/outbox.h"
#include "worker/agent/report_buffer.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

// Values that are constant for an incarnation of the daemon, and functions that access randomness and the host.
struct CoreOptions {
  std::string coordinator;  // as configured, for messages
  std::string host;
  Incarnation incarnation;
  uint32_t slots = 1;
  bool shares_machine = false;  // another daemon runs here, so its ranks may use the same cores
  v1::Inventory inventory;
  std::vector<uint32_t> cpus = {};  // the numbers of the CPUs that this daemon may use
  // The interface of the inventory's data address; empty: not known. AddressFound replaces both.
  std::string data_interface = {};
  std::string cluster_id;  // of the coordinator that this daemon knew last; empty: none
  // Lets the coordinator of another cluster use this host; the trainers that run here are then ended.
  bool adopt_cluster = false;
  OutboxContents outbox = {};  // as the earlier incarnation left it
  // Returns a random id for an outbox.
  std::function<std::string()> make_outbox_id = [] { return std::string("outbox"); };
  // Returns a secret for one trainer.
  std::function<std::string()> make_token;
  // Returns a random number in [0, 1), which spreads the dials of many daemons over time.
  std::function<double()> random;
  // Returns the address of a network interface of this host. Possible errors: NotFound; the message lists the
  // interfaces.
  std::function<absl::StatusOr<std::string>(const std::string& name)> interface_address;
};

// Counters and state of the core, for metrics.
struct CoreStats {
  uint64_t dials = 0;
  uint64_t facts = 0;          // added to the outbox
  uint64_t facts_dropped = 0;  // because they belonged to another cluster
  uint64_t outbox_errors = 0;  // writes that the disk refused or that hung
  uint64_t starts = 0;
  uint64_t adopted = 0;      // trainers of an earlier incarnation
  uint64_t exits = 0;        // of started or adopted trainers
  size_t facts_waiting = 0;  // without an acknowledgement
  size_t outbox_bytes = 0;
  bool outbox_on_disk = true;
  bool outbox_hangs = false;  // the disk has not answered for a long time
  bool attached = false;
  bool trouble = false;  // no trainer can be started here
  size_t trainers = 0;   // that are running
};

class Core {
 public:
  explicit Core(CoreOptions options);

  std::vector<Effect> Handle(Event event, absl::Time now);

  // Returns the latest time for the next Tick.
  absl::Time NextWake() const { return next_wake_; }

  CoreStats stats() const;

  // This host's address for traffic between ranks, as announced to the coordinator.
  const std::string& data_address() const { return data_address_; }

 private:
  enum class Process { kStarting, kRunning, kEnded };

  struct Trainer {
    TrainerId id;
    std::string token;
    Process process = Process::kStarting;
    int64_t pid = 0;
    // None: the trainer was found when the daemon started, and the coordinator has not decided about it yet.
    std::optional<v1::DesiredTrainer> desired;
    bool wanted = true;                           // by the newest desired state
    bool killed = false;                          // SIGKILL was sent; not set if over_memory is the reason
    bool ready = false;                           // it has reported that it is ready to train
    bool asked_to_abort = false;                  // by a message on its link, or, if it is a command, by a signal
    bool stopped_before = false;                  // a command, to which an earlier incarnation has sent SIGTERM
    bool counted = false;                         // counted in starts or adopted
    absl::Time kill_at = absl::InfiniteFuture();  // when SIGKILL must be sent
    // If the trainer is the program of a command: the time from SIGTERM to SIGKILL. Such a program may have a link.
    std::optional<absl::Duration> command_grace;
    std::optional<absl::Duration> check_limit;  // of its command.check; none: there is no check
    bool awaits_check = false;                  // it is started once the check of this host has passed
    bool awaits_master = false;                 // it is started once the address of rank 0 is known
    uint32_t needs_cpus = 0;                    // command.cpus; 0: all CPUs, shared
    std::vector<uint32_t> cpus;                 // the CPUs that it has for itself
    uint64_t memory_limit = 0;                  // of a command, in bytes; 0: none
    std::string over_memory;                    // why it was killed: it exceeded the limit

    LinkId link;                     // 0: none
    int64_t link_pid = 0;            // the process that opened the newest link
    bool is_stopped = false;         // whether its process was stopped (SIGSTOP) when it was sampled last
    absl::Time observed_at;          // when the daemon last reported for it
    absl::Time last_message_at;      // when the last message came on this link, or the link was opened
    bool has_spec = false;           // the trainer has received its spec
    bool go_sent = false;            // on this link
    uint64_t stop_sent = 0;          // the newest stop sent on this link
    uint64_t save_sent = 0;          // the newest request for a save sent on this link
    std::string grants_sent;         // the answers about ready checkpoints sent on this link, as bytes
    uint64_t last_fact = 0;          // highest number of a fact that the trainer has reported
    uint64_t last_fact_durable = 0;  // highest number of its facts that the coordinator has acknowledged

    std::optional<v1::TrainerExited> exited;
    absl::Time ended_at;
    bool exit_in_outbox = false;
    bool exit_reported = false;  // the coordinator has acknowledged the exit
    ReportBuffer reports;
  };

  // The program of command.check, which runs once for the ranks of a group on this host.
  struct HostCheck {
    std::optional<StartProcess> waiting;  // it starts when the killed check of an earlier generation has ended
    absl::Time kill_at = absl::InfiniteFuture();
    bool timed_out = false;
    std::optional<v1::TrainerExited> refusal;  // why the ranks are not started
    bool passed = false;
  };

  // core_session.cc: the coordinator.
  void On(Welcomed event);
  void On(FactsAcknowledged event);
  void On(FactsStored event);
  void On(HomeChecked event);
  void On(AddressFound event);
  void On(SessionEnded event);
  void DialWhenDue();
  v1::Hello MakeHello() const;
  void Acknowledge(uint64_t sequence);
  void ResendExits(uint64_t acked);
  void JoinCluster(const std::string& cluster_id);
  absl::Status CheckProtocol(const v1::Welcome& welcome) const;
  // Warns once if the coordinator is of another release.
  void WarnOfVersion(const std::string& version);
  void StoreFactsWhenDue();
  void DetectHangingDisk();
  void SendReports(bool only_due);
  void FlushReports(Trainer& trainer);
  void SendFacts();
  void SendFactsWhenDue();
  void SendHeartbeatWhenDue();
  void AddFact(const Trainer& trainer, v1::Fact fact, const Outbox::Origin& origin);

  // core_desired.cc: the desired state.
  void On(DesiredStateReceived event);
  void DropTrainers(const std::set<TrainerId>& wanted, const std::set<std::string>& unknown_jobs);
  void Drop(Trainer& trainer);
  void EndGroups(const std::set<TrainerId>& wanted, const std::set<std::string>& unknown_jobs);
  void ApplyDesiredTrainer(const v1::DesiredTrainer& desired);
  void StartTrainer(Trainer& trainer);
  // core_check.cc
  void StartCommand(Trainer& trainer);
  bool TakeCpus(Trainer& trainer);
  bool PassCheck(Trainer& trainer);
  // Whether a command no longer waits for its check or for the address of rank 0.
  static bool IsStarted(const Trainer& trainer) { return !trainer.awaits_master && !trainer.awaits_check; }
  bool IsCheckEnding(const JobId& job) const;
  void CheckEnded(const ProcessEnded& event);
  void SettleCheck(const ProcessEnded& event);
  void KillCheck(const GroupId& group);
  void KillChecksWhenDue();
  // core_desired.cc, continued
  void EndCommand(Trainer& trainer);
  void ReportDecisions(const Trainer& trainer, uint32_t threads);
  void ApplyLogRequests(const v1::DesiredState& desired);
  void ApplySnapshotJobs(const v1::DesiredState& desired);
  absl::Status ReadSpec(Trainer& trainer) const;
  void UpdateAppliedRevision();

  // core_trainers.cc: processes and links.
  void On(ProcessFound event);
  void On(AllFound);
  void On(MasterKnown event);
  void On(ProcessStarted event);
  void On(ProcessEnded event);
  void On(LinkOpened event);
  void On(LinkFact event);
  void On(LinkReport event);
  void On(LinkClosed event);
  void On(LogsEnded event);
  void Admit(Trainer& trainer);
  void SendToTrainer(Trainer& trainer);
  void SendSavesToTrainer(Trainer& trainer);
  void ReportExitWhenDue(Trainer& trainer);
  void Signal(Trainer& trainer, int signal);
  Trainer* FindByLink(LinkId link);

  // core_probe.cc: what the daemon observes of processes and paths.
  void SampleWhenDue();
  void On(ProcessesSampled event);
  void LimitMemory(Trainer& trainer, uint64_t bytes);
  void ApplyExaminations(const v1::DesiredState& desired);
  void On(ProcessExamined event);
  void ApplyPathRequests(const v1::DesiredState& desired);
  void On(PathChecked event);
  void SendPaths();

  // core.cc
  void On(LeaveRequested event);
  void On(Tick) {}
  void KillWhenDue();
  void LeaveWhenDue();
  void LeaveWhenIdle();
  void ForgetEndedTrainers();
  void WakeBy(absl::Time time);
  bool AnyAlive() const;
  void Emit(Effect effect) { effects_.push_back(std::move(effect)); }
  void LogInfo(std::string text) { Emit(Log{Log::Level::kInfo, std::move(text)}); }
  void LogWarning(std::string text) { Emit(Log{Log::Level::kWarning, std::move(text)}); }

  const CoreOptions options_;
  std::string data_address_;
  std::string data_interface_;
  std::map<TrainerId, Trainer> trainers_;
  std::map<LinkId, TrainerId> links_;
  std::map<GroupId, HostCheck> checks_;
  std::set<GroupId> ending_checks_;  // killed checks that have not ended yet and may still hold a device or a port
  std::set<GroupId> groups_;         // the groups whose rendezvous values are served
  std::optional<std::set<std::string>> snapshot_jobs_;  // the jobs whose snapshots are kept; none: not known yet
  absl::Time sample_at_ = absl::InfinitePast();
  std::set<std::string> examined_;                              // requests that were started
  std::map<std::string, std::optional<v1::PathAnswer>> paths_;  // requested paths, by request id
  std::map<std::string, bool> log_requests_;                    // by request id: whether the log is followed
  Outbox outbox_;
  absl::Time facts_due_ = absl::InfiniteFuture();  // when facts that are not urgent are sent at the latest
  absl::Time try_disk_at_ = absl::InfiniteFuture();
  absl::Time storing_since_ = absl::InfiniteFuture();  // when the outbox's write under way began; infinite: none
  bool disk_hangs_ = false;                            // the write takes too long, which was reported
  std::string trouble_;                                // why no trainer can be started on this host
  CoreStats counts_;                                   // the totals

  // The session.
  enum class Stream { kDown, kDialing, kUp };
  Stream stream_ = Stream::kDown;
  // Infinite before AllFound, because a trainer that is missing in a hello counts as lost.
  absl::Time dial_at_ = absl::InfiniteFuture();
  absl::Time dialed_at_;
  int failed_dials_ = 0;
  std::string last_failure_;
  absl::Time name_taken_since_ = absl::InfiniteFuture();
  std::string cluster_id_;
  std::string coordinator_version_;
  absl::Duration heartbeat_interval_;
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  bool desired_since_welcome_ = false;
  bool desired_in_this_incarnation_ = false;
  uint64_t newest_revision_ = 0;     // the last one received
  uint64_t applied_revision_ = 0;    // the last one applied completely: no dropped trainer is still starting
  bool report_applied_now_ = false;  // do not wait for the next heartbeat

  bool leaves_when_idle_ = false;
  absl::Time idle_since_ = absl::InfiniteFuture();
  std::optional<Leaving> leaving_;
  absl::Time leave_by_ = absl::InfiniteFuture();
  bool left_ = false;
  bool draining_ = false;

  // Valid while an event is handled.
  absl::Time now_;
  absl::Time next_wake_ = absl::InfinitePast();
  std::vector<Effect> effects_;
};

}  // namespace trainyard::agent
