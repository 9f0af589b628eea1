#include "client/job_session.h"

#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "client/summary.h"

namespace trainyard::client {
namespace {

constexpr uint32_t kLastLines = 20;

}  // namespace

JobSession::JobSession(Connection& connection, const v1::Job& job, const JobSessionOptions& options)
    : connection_(connection),
      job_(job),
      options_(options),
      traits_(TraitsOf(stdout)),
      stream_(connection, job.job_id(), options.retry),
      progress_(options.make_progress != nullptr ? options.make_progress()
                : options.json                   ? NewJsonProgress(stdout)
                                                 : NewTextProgress(stdout, traits_, options.own_daemons)) {}

JobSession::~JobSession() {
  std::thread canceller, announcer;
  {
    absl::MutexLock lock(&cancel_mu_);
    canceller = std::move(canceller_);
    announcer = std::move(announcer_);
  }
  if (canceller.joinable()) canceller.join();
  if (announcer.joinable()) announcer.join();
}

void JobSession::Start(const std::vector<std::string>& warnings) {
  absl::MutexLock lock(&mu_);
  progress_->Start(job_, warnings);
}

void JobSession::Notice(absl::string_view level, absl::string_view text) {
  absl::MutexLock lock(&mu_);
  progress_->Notice(level, text);
}

void JobSession::Output(const v1::LogLine& line) {
  absl::MutexLock lock(&mu_);
  progress_->Output(line);
}

void JobSession::Message(absl::string_view text) {
  absl::MutexLock lock(&mu_);
  progress_->Message(text);
}

void JobSession::CheckOutput() {
  if (!OutputFailed() || output_failed_) return;
  output_failed_ = true;
  const std::string why =
      absl::StrCat(OutputStatus().message(), "; job ", job_.job_id(), " continues. ", options_.watch_hint);
  if (options_.end_if_output_fails) return Abort(why);
  Say(why);
}

absl::StatusOr<v1::Job> JobSession::Follow() {
  CheckOutput();
  v1::StateChange last;
  auto state = stream_.Follow(
      [this, &last](const v1::Event& event) {
        if (event.has_state()) last = event.state();
        {
          absl::MutexLock lock(&mu_);
          progress_->Event(event);
        }
        CheckOutput();
      },
      [this](absl::string_view text) { Message(text); });
  if (!state.ok()) {
    absl::MutexLock lock(&cancel_mu_);
    if (!abort_reason_.empty()) return absl::AbortedError(abort_reason_);
    return state.status();
  }
  auto job = GetJob(connection_, job_.job_id());
  if (job.ok()) return job;
  // The coordinator may have stopped answering since it sent the final state.
  v1::Job ended = job_;
  ended.set_state(*state);
  ended.set_reason(last.reason());
  ended.set_restarts(last.restarts());
  absl::MutexLock lock(&mu_);
  ended.set_last_step(progress_->stats().last_step());
  return ended;
}

int JobSession::Finish(const v1::Job& job) {
  const int exit_code = ExitCodeOf(job.state());
  std::vector<std::string> last_lines;
  const int failed_rank = FailedRank(job);
  if (job.state() == v1::JOB_STATE_FAILED && failed_rank >= 0 && !options_.json) {
    last_lines = LastLogLines(connection_, job, static_cast<uint32_t>(failed_rank), kLastLines);
    // The reason of a job that trains may quote the rank's last lines, which are then not shown a second time.
    // The traceback of a script is always shown whole.
    while (job.spec().has_train() && !last_lines.empty() && absl::StrContains(job.reason(), last_lines.back())) {
      last_lines.pop_back();
    }
  }
  const bool removes_logs = options_.logs_are_temporary && job.state() != v1::JOB_STATE_FAILED;
  absl::MutexLock lock(&mu_);
  std::string details = Summary({.job = job,
                                 .stats = progress_->stats(),
                                 .traits = traits_,
                                 .logs_place = removes_logs ? "" : options_.logs_place,
                                 .last_lines = last_lines});
  done_ = true;
  progress_->Done(job, details, exit_code);
  return exit_code;
}

void JobSession::Cancel(const std::string& reason) {
  absl::MutexLock lock(&cancel_mu_);
  if (canceller_.joinable()) return;
  // The announcement has a thread of its own, because printing blocks while standard output is stalled.
  announcer_ = std::thread([this, reason] { AnnounceCancel(reason); });
  canceller_ = std::thread([this, reason] {
    auto job = CancelJob(connection_, job_.job_id(), reason);
    if (job.ok()) {
      if (options_.on_cancelled) options_.on_cancelled();
      return;
    }
    if (options_.own_daemons && absl::IsUnavailable(job.status())) {
      return Abort(
          absl::StrCat(reason, "; the job is ended without the coordinator, because ", job.status().message()));
    }
    Notice("error", absl::StrCat("could not cancel the job: ", job.status().message()));
  });
}

void JobSession::AnnounceCancel(const std::string& reason) {
  const std::string text =
      absl::StrCat("cancelling job ", job_.job_id(), " (", reason, "); a second interrupt ",
                   options_.own_daemons ? "kills it immediately" : "ends trainctl without waiting");
  absl::MutexLock lock(&mu_);
  if (done_) return;
  // With make_progress (trainctl launch), standard output belongs to the ranks, so Message writes to standard error.
  if (options_.make_progress != nullptr) return progress_->Message(text);
  progress_->Notice("info", text);
}

void JobSession::Abort(const std::string& why) {
  {
    absl::MutexLock lock(&cancel_mu_);
    abort_reason_ = why;
  }
  stream_.Stop();
}

}  // namespace trainyard::client
