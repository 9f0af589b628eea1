// Follows one job to its end over reconnects: every event once and in order, whatever happens to the connection or the
// coordinator in between. Used by run and watch.
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

// Tells which events are new. A coordinator that was started again may tell steps under new sequences, and one that
// lost its newest events numbers anew; so steps, evaluations and checkpoints are also known by their step, and the rest
// by what it says. Pure.
class EventFilter {
 public:
  // Whether `event` has not been seen; remembers it.
  bool IsNew(const v1::Event& event);
  // What a watcher that has seen this much asks for.
  uint64_t after_sequence() const { return after_sequence_; }
  uint64_t after_step() const { return newest_step_; }
  uint64_t after_eval_step() const { return newest_eval_; }
  // The coordinator does not know our sequence: listen to all it has.
  void StartOver() { after_sequence_ = 0; }

 private:
  uint64_t after_sequence_ = 0;
  uint64_t newest_step_ = 0;
  uint64_t newest_eval_ = 0;
  // A later generation may save a step again.
  std::pair<uint64_t, uint64_t> newest_checkpoint_;  // generation, step
  std::set<std::string> told_;                       // the rest, without their sequences
};

class JobStream {
 public:
  using OnEvent = std::function<void(const v1::Event&)>;
  // Told once when the coordinator stops answering, and once when it is back.
  using OnNotice = std::function<void(absl::string_view)>;

  // Does not own `connection`; it must outlive this object.
  JobStream(Connection& connection, std::string job_id, const RetryOptions& options);

  // Blocks until the job's final state, which it returns. Callbacks run on the caller's thread. Possible errors:
  // NotFound no such job; Unavailable the coordinator stayed away; Cancelled by Stop.
  absl::StatusOr<v1::JobState> Follow(const OnEvent& on_event, const OnNotice& on_notice);

  // Ends Follow. Thread-safe.
  void Stop();

 private:
  // One Watch call. `answered` tells whether anything came.
  absl::Status WatchOnce(const OnEvent& on_event, bool* answered, v1::JobState* final_state);
  bool Pause(absl::Duration duration);

  Connection& connection_;
  const std::string job_id_;
  const RetryOptions options_;
  EventFilter filter_;

  absl::Mutex mu_;
  SteadyCondVar stop_asked_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace trainyard::client
