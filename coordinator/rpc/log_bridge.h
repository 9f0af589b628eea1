// Brings trainers' output from the daemons that push it (AgentService.PushLogs) to the reader that asked
// (JobService.Logs), past the core, which only knows who asks for what. A slow reader slows its pushers; it never fills
// memory. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/event.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard {

// The reader's stream, as the bridge sees it.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // False: taken, but enough is waiting; `resume` runs once there is room, or when the reader has gone.
  virtual bool Write(v1::LogChunk chunk, std::function<void()> resume) = 0;
};

class LogBridge {
 public:
  void Open(const std::vector<std::string>& request_ids, const std::shared_ptr<LogSink>& sink);
  // Forgets every request of the reader.
  void Close(const std::shared_ptr<LogSink>& sink);

  // Possible errors: NotFound: nobody asks under this id any more.
  absl::Status Push(const std::string& request_id, v1::LogChunk chunk, std::function<void()> resume, bool& go_on);

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<LogSink>> sinks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
