// Follows one job to its end, shows its progress and a summary: the common part of `run` and `watch`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/connection.h"
#include "client/job_stream.h"
#include "client/progress.h"
#include "client/terminal.h"

namespace trainyard::client {

struct JobSessionOptions {
  bool json = false;
  bool own_daemons = false;  // see NewTextProgress
  std::string logs_place;    // see SummaryInput
  // The output of the ranks is removed after the end of the job, unless the job has failed.
  bool logs_are_temporary = false;
  // If standard output cannot be written: true: Follow ends; false: Follow says so once and continues without output.
  bool end_if_output_fails = true;
  // Creates the object that shows the job; null: NewTextProgress, or NewJsonProgress with `json`.
  std::function<std::unique_ptr<Progress>()> make_progress = nullptr;
  std::string watch_hint;  // how to watch the job after standard output has failed; a sentence
  RetryOptions retry;      // while the coordinator does not answer
  // Called on another thread when the coordinator has recorded the cancellation that Cancel requested.
  std::function<void()> on_cancelled = nullptr;
};

// Call Follow on one thread; Cancel, Abort, Message, Notice and Output on any.
class JobSession {
 public:
  // Does not own `connection`, which must outlive this object.
  JobSession(Connection& connection, const v1::Job& job, const JobSessionOptions& options);
  ~JobSession();

  // Prints a description of the job: id, name, ranks, steps. `warnings` are those that the user has not seen.
  void Start(const std::vector<std::string>& warnings);
  // Blocks until the job ends and returns its final state. Possible errors: those of JobStream::Follow; Aborted: Abort
  // was called, or standard output cannot be written.
  absl::StatusOr<v1::Job> Follow();
  // Prints the summary. Returns the exit code.
  int Finish(const v1::Job& job);

  // Requests the job's cancellation once and reports it. Does not wait, not even for output that blocks. If the daemons
  // are private and the coordinator cannot record the request (its disk is full), Follow ends as with Abort and the
  // caller must stop the daemons.
  void Cancel(const std::string& reason);
  // Makes Follow return Aborted with `why`.
  void Abort(const std::string& why);
  // Prints a message of trainctl itself to standard error.
  void Message(absl::string_view text);
  void Notice(absl::string_view level, absl::string_view text);
  // Shows a line that a rank has written.
  void Output(const v1::LogLine& line);

 private:
  // Call after each output; reports once that standard output cannot be written.
  void CheckOutput();
  void AnnounceCancel(const std::string& reason);

  Connection& connection_;
  const v1::Job job_;
  const JobSessionOptions options_;
  const TerminalTraits traits_;
  JobStream stream_;

  absl::Mutex mu_;  // is held during writes to standard output, which may block
  std::unique_ptr<Progress> progress_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;  // the summary was printed
  bool output_failed_ = false;              // a failed write was reported; used only by the thread in Follow

  absl::Mutex cancel_mu_;  // is never held during writes, so that Cancel and Abort do not block
  std::string abort_reason_ ABSL_GUARDED_BY(cancel_mu_);
  std::thread canceller_ ABSL_GUARDED_BY(cancel_mu_);
  std::thread announcer_ ABSL_GUARDED_BY(cancel_mu_);
};

}  // namespace trainyard::client
