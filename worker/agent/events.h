// What goes into the daemon's core and what comes out of it. Plain values: made and carried out by the session, the
// link server and the process table, decided upon by the core alone (core.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/trainer.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

// One connection of a trainer to this daemon; never used twice in a daemon's life.
using LinkId = NumberId<struct LinkIdTag>;

// ---- Events ----

// The coordinator's side.
struct Welcomed {
  v1::Welcome welcome;
};
struct DesiredStateReceived {
  v1::DesiredState desired;
};
struct FactsAcknowledged {
  uint64_t sequence;
};
// The last StoreFacts is on disk, or the disk refused. Exactly one for every StoreFacts.
struct FactsStored {
  absl::Status status;
};
// The stream has ended, or the attempt to open one has failed. Exactly one for every Dial.
struct SessionEnded {
  absl::Status status;
};

// The trainers' side, by their links.
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

// The processes' side.
//
// A rank folder of an earlier life of this daemon. Its end follows as ProcessEnded if it has ended.
struct ProcessFound {
  TrainerId id;
  std::string token = {};
  int64_t pid = 0;        // 0: not known yet
  bool reported = false;  // it has ended and the coordinator knows: only here so that it is not started again
};
// There are no more of these: a hello names them all from here on.
struct AllFound {};
struct ProcessStarted {
  TrainerId id;
  int64_t pid;
};
// Nothing of the trainer is left.
struct ProcessEnded {
  TrainerId id;
  v1::TrainerExited exited;
};

// What SampleProcesses saw; processes that are gone are left out.
struct ProcessSample {
  TrainerId id;
  std::string state;  // of /proc
  double cpu_s;       // user and system time since it began
};
struct ProcessesSampled {
  std::vector<ProcessSample> samples;
};
struct ProcessExamined {
  TrainerId id;
  v1::Examination examination;
};

// What is at a path that the coordinator asked for.
struct PathLooked {
  v1::PathAnswer answer;
};

// What a look at the state folder and the sockets (home.h) found.
struct HomeLooked {
  std::string trouble = {};    // why nothing can be started on this host; empty: it can
  bool state_is_new = false;   // the state folder was gone and has been made again
  bool socket_is_new = false;  // a socket was
  bool hangs = false;          // the look has not come back yet, which is the trouble
};

struct LogsEnded {
  std::string request_id;
};
enum class Leaving {
  kWhenIdle,          // let go by whoever started it: once no trainer is left and the coordinator has gone
  kStayingTrainers,   // SIGTERM: the trainers go on
  kStoppingTrainers,  // SIGTERM and --stop-trainers: they are asked to end, then killed
  kKillingTrainers,   // the lifeline has ended, or a second signal
};
struct LeaveRequested {
  Leaving how;
};
struct Tick {};

using Event = std::variant<Welcomed, DesiredStateReceived, FactsAcknowledged, FactsStored, SessionEnded, LinkOpened,
                           LinkFact, LinkReport, LinkClosed, ProcessFound, AllFound, ProcessStarted, ProcessEnded,
                           ProcessesSampled, ProcessExamined, PathLooked, HomeLooked, LogsEnded, LeaveRequested, Tick>;

// ---- Effects, carried out in order ----

// Opens a stream to the coordinator; this is its first message.
struct Dial {
  v1::Hello hello;
};
// Ends the stream, or the attempt; SessionEnded follows.
struct HangUp {
  std::string reason;
};
struct SendUp {
  v1::AgentMessage message;
};
// Writes to the outbox's file and syncs it; FactsStored follows. One is under way at a time.
struct StoreFacts {
  std::string bytes;
  bool replace;  // the whole file, at once; otherwise they go behind what is there
};
struct SendLink {
  LinkId link;
  v1::LinkMessage message;
};
struct CloseLink {
  LinkId link;
  absl::Status status;
};
struct StartProcess {
  v1::DesiredTrainer desired;
  uint32_t threads;
  std::string token;
};
struct SignalProcess {
  TrainerId id;
  int signal;  // SIGKILL goes to all of its process group
};
// A glance at each: ProcessesSampled follows.
struct SampleProcesses {
  struct Process {
    TrainerId id;
    int64_t pid;
  };
  std::vector<Process> processes;
};
// A closer look, which takes a while: ProcessExamined follows.
struct ExamineProcess {
  TrainerId id;
  int64_t pid = 0;
  std::string request_id;
  bool with_stack = false;  // it is to be ended anyway: it may be disturbed
};
// Whether something is at this path, which may take long (a network file system): PathLooked follows.
struct LookForPath {
  std::string request_id;
  std::string path;
};
// The coordinator has the exit of this trainer: write that down.
struct MarkReported {
  TrainerId id;
};
// Puts and gets with this token are served from here on.
struct AdmitTrainer {
  TrainerId id;
  std::string token;
};
// Every rank of the group is ready: it needs nobody's values any more.
struct SealGroup {
  GroupId group;
};
// Waits for values of this group end now, its values are dropped.
struct EndGroup {
  GroupId group;
  std::string reason;
};
struct StartLogs {
  v1::LogRequest request;
};
// Nobody asks any more: what is there is sent, then LogsEnded follows.
struct StopLogs {
  std::string request_id;
};
// All is sent.
struct ForgetLogs {
  std::string request_id;
};
struct RememberCluster {
  std::string cluster_id;
};
// What trainers of other jobs have left in memory is removed.
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
  bool with_trainers = false;  // nothing of them stays, nor is of use to the next daemon
};

using Effect = std::variant<Dial, HangUp, SendUp, StoreFacts, SendLink, CloseLink, StartProcess, SignalProcess,
                            SampleProcesses, ExamineProcess, LookForPath, MarkReported, AdmitTrainer, SealGroup,
                            EndGroup, StartLogs, StopLogs, ForgetLogs, RememberCluster, KeepSnapshots, Log, Leave>;

}  // namespace trainyard::agent
