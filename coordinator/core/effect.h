// The effects of the core: plain values that the loop releases once the records made with them are durable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "coordinator/core/event.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// ---- to clients ----------------------------------------------------------------------------------------------------

struct Reply {
  CallId call;
  absl::Status status;
  // Set where `status` is OK.
  std::variant<std::monostate, v1::SubmitResponse, v1::Job, v1::ListResponse, v1::ServerInfo, v1::ListHostsResponse,
               v1::HostStatus, v1::ListEventsResponse, v1::FindJobsResponse, v1::GetQueueResponse>
      response;
};

using EventPtr = std::shared_ptr<const v1::Event>;

// Events that a watcher requested, and the position after them. `last`: the stream ends with OK after them.
struct WatchBatch {
  WatchId watch;
  std::vector<EventPtr> events;
  WatchPosition position;
  bool last = false;
};

struct EndWatch {
  WatchId watch;
  absl::Status status;
};

// The reader's lines arrive under these request ids. Each id stands for one host.
struct LogsOpened {
  ReaderId reader;
  std::vector<std::string> request_ids;
};

struct EndLogs {
  ReaderId reader;
  absl::Status status;
};

// ---- to daemons ----------------------------------------------------------------------------------------------------

struct SendToHost {
  SessionId session;
  v1::CoordinatorMessage message;
};

struct EndSession {
  SessionId session;
  absl::Status status;
};

using ValuePtr = std::shared_ptr<const v1::StoreValue>;

using SessionList = std::shared_ptr<const std::vector<SessionId>>;

// The values of one generation in the order they were put. The log grows while pending effects point to it, which is
// safe because the loop's thread alone appends to it and reads it.
struct ValueLog {
  JobId job;
  uint64_t generation = 0;
  std::vector<ValuePtr> values = {};
};

// Sends these hosts the values of the log that they have not received yet.
struct SendValues {
  std::shared_ptr<const ValueLog> log;
  SessionList sessions;
};

// ---- to the operator -----------------------------------------------------------------------------------------------

struct WriteLog {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};

// An event of a job for metrics; watchers receive it by WatchBatch.
struct JobPublished {
  JobId job;
  EventPtr event;
  bool repeats_state = false;  // an event of the state that the job had before: only the reason has changed
};

enum class DroppedKind { kDurable, kReport, kCluster };

// Events that were dropped because of a limit, so that no watcher receives them.
struct EventsDropped {
  DroppedKind kind = DroppedKind::kDurable;
  uint64_t count = 0;
};

// The oldest finished job was removed, because there were more finished jobs than the limit.
struct JobForgotten {
  JobId job;
};

// A generation has failed.
struct FailureCounted {
  std::string cause;  // FailureKindName
};

// A save was recorded, or failed.
struct SaveCounted {
  bool failed = false;
  uint64_t size_bytes = 0;
  std::optional<double> seconds;  // unset: it failed, or a script made it, which reports no duration
};

// The job is final: metrics drop the series with its id.
struct JobEnded {
  JobId job;
};

// The job has ended and has a webhook, which was not delivered yet. The event WebhookDone reports the result.
struct WebhookDue {
  std::string url;
  v1::Job job;  // without ranks
};

using Effect =
    std::variant<Reply, WatchBatch, EndWatch, LogsOpened, EndLogs, SendToHost, EndSession, SendValues, WriteLog,
                 JobPublished, EventsDropped, JobForgotten, FailureCounted, SaveCounted, JobEnded, WebhookDue>;

// A put, or a delete where there is no value.
struct Record {
  std::string key;
  std::optional<std::string> value;
  // Records of one turn with the same `group` are written in one commit, unless they exceed its limit. 0: no group.
  uint32_t group = 0;
};

struct Output {
  std::vector<Record> records;
  std::vector<Effect> effects;
};

}  // namespace trainyard
