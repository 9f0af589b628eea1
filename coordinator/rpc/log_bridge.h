// Passes trainers' output from the daemons that push it (AgentService.PushLogs) to the reader that requested it
// (JobService.Logs). The core is not involved; it only knows the requests. A slow reader slows its pushers, so that
// memory use stays bounded. Thread-safe.
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

// The reader's stream, as used by the bridge.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Returns false if the lines were accepted but too many wait; then `resume` runs when there is space or the reader
  // has disconnected, which may be before Write returns.
  virtual bool Write(v1::LogChunk chunk, std::function<void()> resume) = 0;
};

class LogBridge {
 public:
  void Open(const std::vector<std::string>& request_ids, const std::shared_ptr<LogSink>& sink);
  // Removes all requests of the reader.
  void Close(const std::shared_ptr<LogSink>& sink);

  // Sets `keep_reading` to whether the pusher may send more now; if not, `resume` is called when it may. Possible
  // errors: NotFound if there is no request with this id any more.
  absl::Status Push(const std::string& request_id, v1::LogChunk chunk, std::function<void()> resume,
                    bool& keep_reading);

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<LogSink>> sinks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
