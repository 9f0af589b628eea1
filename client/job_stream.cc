#include "client/job_stream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/exit_code.h"
#include "common/api_version.h"
#include "common/clock.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kSeenMax = 20'000;

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
    case v1::Event::kCheckpoint: {
      if (event.checkpoint().requested()) break;  // it may name a checkpoint that an earlier event has named
      const std::pair<uint64_t, uint64_t> checkpoint(event.generation(), event.checkpoint().step());
      if (checkpoint <= newest_checkpoint_) return false;
      newest_checkpoint_ = checkpoint;
      return true;
    }
    default:
      break;
  }
  v1::Event content = event;
  content.clear_sequence();
  // The limit is far above the number of events that are stored for a job; a duplicate is better than unbounded memory.
  if (seen_.size() >= kSeenMax) seen_.clear();
  return seen_.insert(content.SerializeAsString()).second;
}

JobStream::JobStream(Connection& connection, std::string job_id, const RetryOptions& options)
    : connection_(connection), job_id_(std::move(job_id)), options_(options) {}

void JobStream::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  stop_requested_.SignalAll();
  if (context_ != nullptr) context_->TryCancel();
}

bool JobStream::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return !stop_requested_.AwaitFor(&mu_, duration, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_; });
}

absl::Status JobStream::WatchOnce(const OnEvent& on_event, bool* answered, v1::JobState* final_state) {
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(Connection::Stub stub, connection_.Begin(context));
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
    context_ = &context;
  }
  v1::WatchRequest request;
  request.set_job_id(job_id_);
  request.set_after_sequence(filter_.after_sequence());
  request.set_after_step(filter_.after_step());
  request.set_after_eval_step(filter_.after_eval_step());
  request.set_allow_gap(std::exchange(allow_gap_, false));
  const absl::Time began = Clock::GetSteadyClock().TimeNow();
  auto reader = stub->Watch(&context, request);
  v1::Event event;
  while (reader->Read(&event)) {
    *answered = true;
    // A notice without a sequence number is not stored. It says that the coordinator cannot write to its store, or can
    // write again.
    const bool is_unstored_notice = event.sequence() == 0 && event.has_notice();
    if (!is_unstored_notice && !filter_.IsNew(event)) continue;
    on_event(event);
    if (event.has_state() && IsFinal(event.state().state())) *final_state = event.state().state();
  }
  grpc::Status status = reader->Finish();
  // A coordinator sends its metadata at once, before the first event, and a job may have no events for days.
  const bool has_begun = context.GetServerInitialMetadata().count(kServerHeader) > 0;
  if (has_begun && Clock::GetSteadyClock().TimeNow() - began > options_.backoff_max) *answered = true;
  absl::MutexLock lock(&mu_);
  context_ = nullptr;
  if (stopped_) return absl::CancelledError("stopped");
  return connection_.ToStatus(status, context);
}

absl::StatusOr<v1::JobState> JobStream::Follow(const OnEvent& on_event, const OnNotice& on_notice) {
  Retry retry(options_);
  while (true) {
    bool answered = false;
    v1::JobState final_state = v1::JOB_STATE_UNSPECIFIED;
    absl::Status status = WatchOnce(
        [&](const v1::Event& event) {
          if (retry.is_unanswered()) on_notice("the coordinator answers again");
          retry.Answered();
          on_event(event);
        },
        &answered, &final_state);
    if (final_state != v1::JOB_STATE_UNSPECIFIED) return final_state;
    if (answered || status.ok()) retry.Answered();
    absl::Duration wait;
    if (IsUnanswered(status)) {
      if (!retry.is_unanswered()) on_notice(absl::StrCat(status.message(), "; the job continues; trying again"));
      absl::optional<absl::Duration> wait_before_retry = retry.Failed(Clock::GetSteadyClock().TimeNow());
      if (!wait_before_retry.has_value()) return status;
      wait = *wait_before_retry;
    } else if (status.ok()) {
      wait = retry.NextBackoff();
    } else if (ReasonOf(status) == reasons::kVersionExpired) {
      on_notice("some events of the job were deleted while the connection was lost, and are not shown");
      allow_gap_ = true;
      wait = retry.NextBackoff();
    } else if (status.code() == absl::StatusCode::kOutOfRange && filter_.after_sequence() > 0) {
      filter_.StartOver();
      wait = retry.NextBackoff();
    } else {
      return status;
    }
    if (!Pause(wait)) return absl::CancelledError("stopped");
  }
}

}  // namespace trainyard::client
