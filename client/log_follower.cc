#include "client/log_follower.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "client/output.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trainyard::client {

LogFollower::LogFollower(Connection& connection, std::string job_id, const RetryOptions& retry, OnLine on_line)
    : connection_(connection), job_id_(std::move(job_id)), on_line_(std::move(on_line)), retry_(retry), thread_([this] {
        Run();
      }) {}

LogFollower::~LogFollower() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

bool LogFollower::AwaitEnd(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  while (!ended_) {
    const uint64_t shown = shown_;
    changed_.AwaitFor(&mu_, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
    if (!ended_ && shown_ == shown && begun_ == shown) return false;
  }
  return complete_;
}

bool LogFollower::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return !changed_.AwaitFor(&mu_, duration, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_; });
}

void LogFollower::Show(const v1::LogLine& line) {
  cursor_.RecordShown(line);
  CountAndShow(line);
}

void LogFollower::CountAndShow(const v1::LogLine& line) {
  ++begun_;
  on_line_(line);
  ++shown_;
}

absl::Status LogFollower::Read(bool follow, const OnLine& on_line) {
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(Connection::Stub stub, connection_.Begin(context));
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
    context_ = &context;
  }
  v1::LogsRequest request;
  request.set_job_id(job_id_);
  request.set_follow(follow);
  auto reader = stub->Logs(&context, request);
  v1::LogLine line;
  while (reader->Read(&line)) on_line(line);
  const grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mu_);
  context_ = nullptr;
  return connection_.ToStatus(status, context);
}

// After a lost connection: reads all stored output to find the position, then follows from there.
absl::Status LogFollower::Resume() {
  LogCursor::Search search = cursor_.Resume();
  RETURN_IF_ERROR(Read(/*follow=*/false, [&](const v1::LogLine& line) { search.Add(line); }));
  retry_.Answered();
  for (const v1::LogLine& line : search.NewLines()) CountAndShow(line);
  return Read(/*follow=*/true, [this](const v1::LogLine& line) {
    if (cursor_.IsNew(line)) Show(line);
  });
}

void LogFollower::Run() {
  absl::Cleanup end = [this] {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    changed_.SignalAll();
  };
  absl::Status status = Read(/*follow=*/true, [this](const v1::LogLine& line) { Show(line); });
  while (IsUnanswered(status)) {
    const absl::optional<absl::Duration> wait = retry_.Failed(Clock::GetSteadyClock().TimeNow());
    if (!wait.has_value() || !Pause(*wait)) return;
    status = Resume();
  }
  absl::MutexLock lock(&mu_);
  complete_ = status.ok();
  if (!status.ok() && !stopped_) Say(absl::StrCat("the output of the ranks cannot be shown: ", status.message()));
}

}  // namespace trainyard::client
