// The events that go into the daemon's core and the effects that come out of it. Plain values: produced and carried out
// by the parts of the daemon around the core (daemon.h); only the core decides (core.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/trainer.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

// One connection of a trainer to this daemon; never reused within an incarnation of the daemon.
using LinkId = NumberId<struct LinkIdTag>;

// ---- Events ----

// From the coordinator.
struct Welcomed {
  v1::Welcome welcome;
};
struct DesiredStateReceived {
  v1::DesiredState desired;
};
struct FactsAcknowledged {
  uint64_t sequence;
};
// The bytes of the last StoreFacts are on disk, or the disk refused them. Exactly one for every StoreFacts.
struct FactsStored {
  absl::Status status;
};
// The stream has ended, or the attempt to open one has failed. Exactly one for every Dial.
struct SessionEnded {
  absl::Status status;
};

// From trainers, by their links.
struct LinkOpened {
  LinkId link;
  v1::RegisterTrainer registration;
};
struct LinkFact {
  LinkId link;
  v1::Fact fact;
};
struct LinkReport {
  LinkId link;
  v1::RankReport report;
};
struct LinkClosed {
  LinkId link;
};

// From processes.
//
// A rank folder of an earlier incarnation. If the trainer has ended and is not `reported`, ProcessEnded follows.
struct ProcessFound {
  TrainerId id;
  std::string token = {};
  int64_t pid = 0;  // 0: not known yet
  // For a trainer that is the program of a command: the time from SIGTERM to SIGKILL.
  std::optional<absl::Duration> command_grace = {};
  uint64_t memory_limit = 0;        // of a command, in bytes; 0: none
  std::vector<uint32_t> cpus = {};  // the CPUs that a command has for itself
  bool reported = false;            // it has ended and the coordinator knows: the core must not start it again
  bool stopped = false;             // a command, to which an earlier incarnation has sent SIGTERM
};
// All rank folders were found: from now on a hello can name every trainer that runs here.
struct AllFound {};
// The address of rank 0 of this trainer's group (MASTER_ADDR:MASTER_PORT), or why it cannot be found.
struct MasterKnown {
  TrainerId id;
  absl::StatusOr<std::string> address;
};
struct ProcessStarted {
  TrainerId id;
  int64_t pid;
};
// No process of the trainer is left.
struct ProcessEnded {
  TrainerId id;
  v1::TrainerExited exited;
};

// The result of SampleProcesses; processes that have exited are left out.
struct ProcessSample {
  TrainerId id;
  std::string state;          // as /proc reports it: "R", "S", ...
  double cpu_s;               // user and system time since the process began
  uint64_t memory_bytes = 0;  // of all its processes; 0: not requested
};
struct ProcessesSampled {
  std::vector<ProcessSample> samples;
};
struct ProcessExamined {
  TrainerId id;
  v1::Examination examination;
};

// The answer about a path that the coordinator requested.
struct PathChecked {
  v1::PathAnswer answer;
};

// The result of a check of the state folder and the sockets (home.h).
struct HomeChecked {
  std::string trouble = {};    // why no trainer can be started on this host; empty: trainers can be started
  bool state_is_new = false;   // the state folder had disappeared and was recreated
  bool socket_is_new = false;  // a socket had disappeared and was recreated
  bool hangs = false;          // the check has not returned in time; `trouble` says so
};

// The data address (FindDataAddress) was looked up again.
struct AddressFound {
  std::string address = {};      // empty: it could not be determined, or was not looked up
  std::string interface = {};    // the interface that has it; empty: not known
  bool present_is_valid = true;  // an interface that is not loopback has the address that was announced so far
};

// The logs of a request were sent, or could not be.
struct LogsEnded {
  std::string request_id;
};
enum class Leaving {  // in the order of urgency: a later one overrides an earlier one
  // Released by the process that started the daemon: leave when neither a trainer nor the coordinator is left.
  kWhenIdle,
  kKeepTrainers,  // SIGTERM: trainers continue to run
  kStopTrainers,  // SIGTERM and --stop-trainers: trainers are asked to end, then killed
  kKillTrainers,  // the lifeline has ended, or a second signal came
};
struct LeaveRequested {
  Leaving how;
};
struct Tick {};

using Event = std::variant<Welcomed, DesiredStateReceived, FactsAcknowledged, FactsStored, SessionEnded, LinkOpened,
                           LinkFact, LinkReport, LinkClosed, ProcessFound, AllFound, MasterKnown, ProcessStarted,
                           ProcessEnded, ProcessesSampled, ProcessExamined, PathChecked, HomeChecked, AddressFound,
                           LogsEnded, LeaveRequested, Tick>;

// ---- Effects, carried out in order ----

// Opens a stream to the coordinator with this first message.
struct Dial {
  v1::Hello hello;
};
// Ends the stream, or the attempt; SessionEnded follows.
struct HangUp {
  std::string reason;
};
// Sends a message on the stream to the coordinator.
struct SendToCoordinator {
  v1::AgentMessage message;
};
// Writes to the outbox's file and syncs it; FactsStored follows. At most one is under way.
struct StoreFacts {
  std::string bytes;
  bool replace;  // replace the whole file atomically; otherwise append
};
// Sends a message to a trainer.
struct SendLinkMessage {
  LinkId link;
  v1::LinkMessage message;
};
struct CloseLink {
  LinkId link;
  absl::Status status;
};
// Starts a trainer; ProcessStarted or ProcessEnded follows.
struct StartProcess {
  v1::DesiredTrainer desired;
  uint32_t threads;
  std::string token;
  std::string master = {};          // of a command: MASTER_ADDR:MASTER_PORT
  std::vector<uint32_t> cpus = {};  // on which a command runs; empty: all
  bool owns_cores = false;          // each thread of the host's ranks has a core for itself
};
// Finds the address of rank 0 for one rank of a command; MasterKnown follows. For rank 0 itself, a free port is chosen.
struct FindMaster {
  TrainerId id;
  std::string data_address;
};
struct SignalProcess {
  TrainerId id;
  int signal;             // SIGKILL is sent to the whole process group
  bool to_group = false;  // any other signal is sent to the whole group, too
};
// Samples each process; ProcessesSampled follows.
struct SampleProcesses {
  struct Process {
    TrainerId id;
    int64_t pid;
    uint64_t memory_limit = 0;  // of a command, in bytes; 0: none, and its memory is not measured
  };
  std::vector<Process> processes;
};
// Examines a process, which takes a while; ProcessExamined follows.
struct ExamineProcess {
  TrainerId id;
  int64_t pid = 0;
  std::string request_id;
  bool with_stack = false;  // the process will be killed anyway, so it may be interrupted
};
// Checks whether something is at this path, which may take long (a network file system); PathChecked follows.
struct CheckPath {
  std::string request_id;
  std::string path;
};
// Records that the coordinator has the exit of this trainer.
struct MarkReported {
  TrainerId id;
};
// From now on, serves puts and gets that carry this token.
struct AdmitTrainer {
  TrainerId id;
  std::string token;
};
// Every rank of the group is ready, so no rank puts values any more.
struct SealGroup {
  GroupId group;
};
// Ends all waits for values of this group and drops its values.
struct EndGroup {
  GroupId group;
  std::string reason;
};
// Sends the logs of the request to the coordinator; LogsEnded follows.
struct StartLogs {
  v1::LogRequest request;
};
// The logs are no longer requested: sends what was written so far, then LogsEnded follows.
struct StopLogs {
  std::string request_id;
};
// LogsEnded was handled: drops the request.
struct ForgetLogs {
  std::string request_id;
};
// Stores the id of the coordinator's cluster for the next incarnation of the daemon.
struct RememberCluster {
  std::string cluster_id;
};
// Removes the snapshots of all other jobs.
struct KeepSnapshots {
  std::set<std::string> jobs;
};
struct Log {
  enum class Level { kInfo, kWarning, kError };
  Level level;
  std::string text;
};
struct Leave {
  int exit_code;
  bool remove_snapshots = false;  // no trainer stays, so no later daemon needs them
};

using Effect =
    std::variant<Dial, HangUp, SendToCoordinator, StoreFacts, SendLinkMessage, CloseLink, StartProcess, FindMaster,
                 SignalProcess, SampleProcesses, ExamineProcess, CheckPath, MarkReported, AdmitTrainer, SealGroup,
                 EndGroup, StartLogs, StopLogs, ForgetLogs, RememberCluster, KeepSnapshots, Log, Leave>;

}  // namespace trainyard::agent
