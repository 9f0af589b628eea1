#include "client/job_stream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"

namespace trainyard::client {
namespace {

bool Advance(uint64_t step, uint64_t* newest) {
  if (step <= *newest) return false;
  *newest = step;
  return true;
}

}  // namespace

bool EventFilter::IsNew(const v1::Event& event) {
  if (event.sequence() <= after_sequence_) return false;
  after_sequence_ = event.sequence();
  switch (event.kind_case()) {
    case v1::Event::kStep:
      return Advance(event.step().step(), &newest_step_);
    case v1::Event::kEval:
      return Advance(event.eval().step(), &newest_eval_);
    case v1::Event::kCheckpoint:
      return Advance(event.checkpoint().step(), &newest_checkpoint_);
    default:
      return true;
  }
}

JobStream::JobStream(Connection& connection, std::string job_id, const JobStreamOptions& options)
    : connection_(connection), job_id_(std::move(job_id)), options_(options) {}

void JobStream::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool JobStream::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&stopped_), duration);
  return !stopped_;
}

absl::Status JobStream::WatchOnce(const OnEvent& on_event, bool* answered, v1::JobState* final_state) {
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
    context_ = &context;
  }
  v1::WatchRequest request;
  request.set_job_id(job_id_);
  request.set_after_sequence(filter_.after_sequence());
  auto reader = connection_.stub().Watch(&context, request);
  v1::Event event;
  while (reader->Read(&event)) {
    *answered = true;
    if (!filter_.IsNew(event)) continue;
    on_event(event);
    if (event.has_state() && IsFinal(event.state().state())) *final_state = event.state().state();
  }
  grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mu_);
  context_ = nullptr;
  if (stopped_) return absl::CancelledError("stopped");
  return connection_.ToStatus(status);
}

absl::StatusOr<v1::JobState> JobStream::Follow(const OnEvent& on_event, const OnNotice& on_notice) {
  absl::Duration backoff = options_.backoff_min;
  absl::Time away_since = absl::InfiniteFuture();
  while (true) {
    bool answered = false;
    v1::JobState final_state = v1::JOB_STATE_UNSPECIFIED;
    absl::Status status = WatchOnce(
        [&](const v1::Event& event) {
          if (away_since != absl::InfiniteFuture()) on_notice("the coordinator answers again");
          away_since = absl::InfiniteFuture();
          on_event(event);
        },
        &answered, &final_state);
    if (final_state != v1::JOB_STATE_UNSPECIFIED) return final_state;
    if (status.code() == absl::StatusCode::kOutOfRange && filter_.after_sequence() > 0) {
      filter_.StartOver();
    } else if (!status.ok() && status.code() != absl::StatusCode::kUnavailable) {
      return status;
    }
    if (answered) backoff = options_.backoff_min;
    absl::Time now = absl::Now();
    if (answered || status.ok()) {
      away_since = absl::InfiniteFuture();
    } else if (status.code() == absl::StatusCode::kUnavailable) {
      if (away_since == absl::InfiniteFuture()) {
        on_notice(absl::StrCat(status.message(), "; the job goes on, trying again"));
        away_since = now;
      }
      if (now - away_since >= options_.give_up) return status;
    }
    if (!Pause(backoff)) return absl::CancelledError("stopped");
    backoff = std::min(backoff * 2, options_.backoff_max);
  }
}

}  // namespace trainyard::client
