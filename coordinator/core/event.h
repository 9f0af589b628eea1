// The events of the coordinator's core: plain values, made by rpc/ and http/ from calls and messages, and by the loop
// from its timer. Ids and random numbers are part of the event, so that its handling is a function of the state, the
// event and the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

using CallId = NumberId<struct CallIdTag>;        // a call that waits for one answer
using WatchId = NumberId<struct WatchIdTag>;      // a stream of events to a watcher
using SessionId = NumberId<struct SessionIdTag>;  // one stream of a daemon
using ReaderId = NumberId<struct ReaderIdTag>;    // a reader of the output of ranks

// Events by which a client changes something have a field `by`: who requested the change. A notice records this; if
// `by` is empty, there is no such notice.

// ---- clients -------------------------------------------------------------------------------------------------------

struct SubmitJob {
  CallId call;
  v1::SubmitRequest request;
  JobId fallback_id;  // used when the request names none
  std::string by = {};
};

struct GetJob {
  CallId call;
  JobId job;
};

struct ListJobs {
  CallId call;
  v1::ListRequest request;
  bool brief = false;            // with the fields of MakeBrief only
  std::vector<JobId> only = {};  // if not empty: only these jobs, without pages; unknown jobs are left out
};

// Finds the job with the id `text`, or else the jobs whose id begins with it, or else those of that name.
struct FindJobs {
  CallId call;
  v1::FindJobsRequest request;
};

struct CancelJob {
  CallId call;
  JobId job;
  std::string reason;
  bool save = false;
  uint64_t expected_version = 0;
  std::string by = {};
};

struct RestartJob {
  CallId call;
  v1::RestartRequest request;
  std::string by = {};
};

struct PauseJob {
  CallId call;
  v1::PauseRequest request;
  std::string by = {};
};

struct SaveJob {
  CallId call;
  v1::SaveRequest request;
  std::string by = {};
};

struct ResumeJob {
  CallId call;
  v1::ResumeRequest request;
  std::string by = {};
};

struct SetPriority {
  CallId call;
  v1::SetPriorityRequest request;
  std::string by = {};
};

struct GetQueue {
  CallId call;
  v1::GetQueueRequest request;
};

struct SetHost {
  CallId call;
  v1::SetHostRequest request;
  std::string by = {};
};

struct GetServerInfo {
  CallId call;
};

struct ListHosts {
  CallId call;
  v1::ListHostsRequest request = {};
};

struct ListEvents {
  CallId call;
  v1::ListEventsRequest request;
  // Not 0: answer with at most this many reports of steps and evaluations of the job instead of its durable events.
  size_t max_reports = 0;
};

// The position of a watcher. Steps and evaluations are identified by their number, because after a restart of the
// coordinator they arrive again with new sequence numbers.
struct WatchPosition {
  uint64_t sequence = 0;
  uint64_t step = 0;
  uint64_t eval_step = 0;
};

// Requests the events of a job after `position`; answered by WatchBatch as soon as there are any. The watcher requests
// more when it has written the batch, so no events queue up here for a slow watcher.
struct WatchJob {
  WatchId watch;
  JobId job;
  WatchPosition position;
  bool first = false;  // the stream has just been opened
  // Accepts that events after the position were deleted; otherwise the stream then ends with an error. Ignored unless
  // `first` is true.
  bool allow_gap = false;
};

struct WatchClosed {
  WatchId watch;
  JobId job;
};

struct OpenLogs {
  ReaderId reader;
  v1::LogsRequest request;
};

struct LogsClosed {  // the reader has disconnected
  ReaderId reader;
};

// ---- daemons -------------------------------------------------------------------------------------------------------

struct AttachHost {
  SessionId session;
  v1::Hello hello;
  std::string peer;  // address, for messages
};

struct DetachHost {
  SessionId session;
};

struct HostFactsReceived {
  SessionId session;
  v1::FactBatch batch;
  size_t bytes = 0;  // set by the queue: the size that it counts for this event
};

struct RankReportsReceived {
  SessionId session;
  v1::RankReports reports;
  size_t bytes = 0;  // set by the queue: the size that it counts for this event
};

// The host has applied a desired state. Sent when the revision changes; heartbeats arrive with the Tick.
struct RevisionApplied {
  SessionId session;
  uint64_t revision = 0;
};

// The daemon is about to leave with its trainers, or stays after all. Sent when that changes.
struct HostDraining {
  SessionId session;
  bool draining = false;
};

// Why the host can run no trainer now; empty: it can. Sent with the first heartbeat of a stream, and when it changes.
struct HostTrouble {
  SessionId session;
  std::string trouble;
};

// Rendezvous values that ranks of the host have put.
struct HostValuesReceived {
  SessionId session;
  v1::PutValues put;
};

struct LogPushEnded {  // a daemon has sent all output that a request covers
  std::string request_id;
};

// ---- time ----------------------------------------------------------------------------------------------------------

// About ten times a second. `contacts` names the sessions that sent anything since the last tick, and when.
struct Tick {
  struct Contact {
    SessionId session;
    absl::Time time;
    // These two are from the newest heartbeat since the last tick, if it contained them.
    std::optional<absl::Duration> clock_offset = std::nullopt;  // the host's clock minus ours minus the message's delay
    std::optional<uint64_t> disk_free_bytes = std::nullopt;
  };
  std::vector<Contact> contacts;
};

// ---- the sender of webhooks ----------------------------------------------------------------------------------------

struct WebhookDone {
  JobId job;
  int attempts = 0;
  std::string problem;  // why it is given up; empty: it was delivered
};

// event_table.cc lists the events in the same order.
using Event = std::variant<SubmitJob, GetJob, ListJobs, FindJobs, CancelJob, RestartJob, PauseJob, ResumeJob, SaveJob,
                           SetPriority, GetQueue, SetHost, GetServerInfo, ListHosts, ListEvents, WatchJob, WatchClosed,
                           OpenLogs, LogsClosed, AttachHost, DetachHost, HostDraining, HostTrouble, RevisionApplied,
                           HostFactsReceived, RankReportsReceived, HostValuesReceived, LogPushEnded, WebhookDone, Tick>;

// Returns the name of the event in metrics, such as "submit_job".
const char* NameOf(const Event& event);

}  // namespace trainyard
