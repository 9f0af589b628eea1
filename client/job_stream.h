// Follows one job to its end across reconnects: delivers every event once and in order, whatever happens to the
// connection or the coordinator. Used by run and watch.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/retry.h"
#include "common/steady_cond_var.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Decides which events are new. A restarted coordinator may repeat steps under new sequence numbers. A coordinator that
// lost its newest events reuses sequence numbers. Therefore steps, evaluations and checkpoints are also identified by
// their step, and other events by their content. Checkpoints that answer a request to save are identified by their
// content, too, because a script may answer several requests with one checkpoint. Pure.
class EventFilter {
 public:
  // Returns whether `event` has not been seen yet, and remembers it.
  bool IsNew(const v1::Event& event);
  // The position from which to request further events.
  uint64_t after_sequence() const { return after_sequence_; }
  uint64_t after_step() const { return newest_step_; }
  uint64_t after_eval_step() const { return newest_eval_; }
  // Call if the coordinator does not know our sequence number: then all events of the job are requested again.
  void StartOver() { after_sequence_ = 0; }

 private:
  uint64_t after_sequence_ = 0;
  uint64_t newest_step_ = 0;
  uint64_t newest_eval_ = 0;
  // A later generation may save the same step again.
  std::pair<uint64_t, uint64_t> newest_checkpoint_;  // generation, step
  std::set<std::string> seen_;                       // other events, without their sequence numbers
};

class JobStream {
 public:
  using OnEvent = std::function<void(const v1::Event&)>;
  // Called with a sentence for the user when the coordinator stops answering, when it answers again, and when events
  // were deleted before they could be delivered.
  using OnNotice = std::function<void(absl::string_view)>;

  // Does not own `connection`, which must outlive this object.
  JobStream(Connection& connection, std::string job_id, const RetryOptions& options);

  // Blocks until the job reaches a final state, and returns it. Runs callbacks on the calling thread. Possible errors:
  // NotFound: there is no such job; Unavailable: the coordinator did not answer for too long; Cancelled: Stop was
  // called.
  absl::StatusOr<v1::JobState> Follow(const OnEvent& on_event, const OnNotice& on_notice);

  // Makes Follow return. Thread-safe.
  void Stop();

 private:
  // One Watch call. Sets `answered` if any event arrived, or if the coordinator served the call for longer than the
  // longest backoff.
  absl::Status WatchOnce(const OnEvent& on_event, bool* answered, v1::JobState* final_state);
  bool Pause(absl::Duration duration);

  Connection& connection_;
  const std::string job_id_;
  const RetryOptions options_;
  EventFilter filter_;
  bool allow_gap_ = false;  // the next call accepts that events were deleted

  absl::Mutex mu_;
  SteadyCondVar stop_requested_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace trainyard::client
