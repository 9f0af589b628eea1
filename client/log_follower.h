// Follows the output of all ranks of a job on a thread of its own, through restarts of the job, until the job has
// ended. After a lost connection, connects again and shows no line twice.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/log_cursor.h"
#include "client/retry.h"
#include "common/steady_cond_var.h"

namespace trainyard::client {

class LogFollower {
 public:
  using OnLine = std::function<void(const v1::LogLine&)>;

  // Does not own `connection`, which must outlive this object. `on_line` is called on the thread of this object.
  LogFollower(Connection& connection, std::string job_id, const RetryOptions& retry, OnLine on_line);
  // Stops following.
  ~LogFollower();
  LogFollower(const LogFollower&) = delete;
  LogFollower& operator=(const LogFollower&) = delete;

  // Waits until all output was shown, or no line was shown for `limit`. A line whose printing blocks, as in a pager, is
  // waited for. Returns whether all output was shown. Call it after the job has ended.
  bool AwaitEnd(absl::Duration limit);

 private:
  void Run();
  // One complete Logs call.
  absl::Status Read(bool follow, const OnLine& on_line);
  absl::Status Resume();
  void Show(const v1::LogLine& line);
  void CountAndShow(const v1::LogLine& line);
  // Returns whether to continue.
  bool Pause(absl::Duration duration);

  Connection& connection_;
  const std::string job_id_;
  const OnLine on_line_;
  Retry retry_;       // used by the thread only
  LogCursor cursor_;  // used by the thread only

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;                   // all output was read
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the call under way
  SteadyCondVar changed_;                                        // stopped_ or ended_
  std::atomic<uint64_t> begun_{0};                               // lines given to on_line_
  std::atomic<uint64_t> shown_{0};                               // lines for which it has returned
  std::thread thread_;
};

}  // namespace trainyard::client
