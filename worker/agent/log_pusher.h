// Sends the output of trainers to the coordinator on request. For each log request of the desired state, a thread reads
// the rank folders and writes to a PushLogs stream of its own, so that output never delays control messages.
//
// Stored output is sent first: generations from the oldest on, and for each rank standard output before standard error;
// with `tail_lines`, only the last lines of each rank. If the request follows the log, new lines are then sent as they
// are written, until the request is stopped.
//
// Thread-safe. `post` receives a LogsEnded for each request, from the request's thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/dial.h"
#include "worker/agent/events.h"
#include "worker/agent/folder_watch.h"

namespace trainyard::agent {

class LogPusher {
 public:
  using Post = std::function<void(Event)>;

  LogPusher(std::string ranks_folder, Post post);
  // Cancels all requests.
  ~LogPusher();
  LogPusher(const LogPusher&) = delete;
  LogPusher& operator=(const LogPusher&) = delete;

  void Start(const v1::LogRequest& request, const CoordinatorChannel& coordinator);
  // Sends the output that was written so far, then ends the request.
  void Stop(const std::string& request_id);
  // Forgets a request. REQUIRES: its LogsEnded was posted.
  void Remove(const std::string& request_id);

 private:
  class Push;

  const std::string ranks_;
  const Post post_;
  FolderWatch watch_;

  absl::Mutex mu_;
  std::map<std::string, std::unique_ptr<Push>> pushes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::agent
