// What the core wants done: plain values, released by the loop once the records that came with them are durable.
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

// ---- to people and services ----------------------------------------------------------------------------------------

struct Reply {
  CallId call;
  absl::Status status;
  // Set where `status` is OK.
  std::variant<std::monostate, v1::SubmitResponse, v1::Job, v1::ListResponse, v1::ServerInfo, v1::PutValueResponse>
      response;
};

using EventPtr = std::shared_ptr<const v1::Event>;

// Events a watcher asked for. `last`: the stream ends with OK after them.
struct WatchBatch {
  WatchId watch;
  std::vector<EventPtr> events;
  bool last = false;
};

struct EndWatch {
  WatchId watch;
  absl::Status status;
};

// The reader's lines come under these request ids, each pushed by one host.
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

using WatchList = std::shared_ptr<const std::vector<WatchId>>;

// The same values to every one of these watchers. Puts of one round name the same list, so that they can go out together.
struct SendValues {
  WatchList watches;
  std::vector<ValuePtr> values;
};

struct EndValues {
  std::vector<WatchId> watches;
  absl::Status status;
};

// ---- to the operator -----------------------------------------------------------------------------------------------

struct WriteLog {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};

// Something of a job that metrics count; watchers got it by WatchBatch.
struct JobTold {
  JobId job;
  EventPtr event;
};

// A generation has failed.
struct FailureCounted {
  std::string cause;  // FailureKindName
};

// A save was recorded, or failed.
struct SaveCounted {
  bool failed = false;
  double seconds = 0;
};

// The job is final: metrics drop what carries its id.
struct JobEnded {
  JobId job;
};

using Effect = std::variant<Reply, WatchBatch, EndWatch, LogsOpened, EndLogs, SendToHost, EndSession, SendValues,
                            EndValues, WriteLog, JobTold, FailureCounted, SaveCounted, JobEnded>;

// A put, or a delete where there is no value.
struct Record {
  std::string key;
  std::optional<std::string> value;
};

struct Output {
  std::vector<Record> records;
  std::vector<Effect> effects;
};

}  // namespace trainyard
