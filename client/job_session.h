// One job followed to its end, shown as it goes, and summed up: what `run` and `watch` have in common.
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
  // What Follow does once standard output cannot be written: ends, or follows the job in silence.
  bool ends_with_output = true;
  // A sentence for then: how to see the job.
  std::string seen_by;
  RetryOptions retry;  // while the coordinator is away
};

// Follow on one thread; Cancel, Abort and Notice from any.
class JobSession {
 public:
  // Does not own `connection`; it must outlive this object.
  JobSession(Connection& connection, const v1::Job& job, const JobSessionOptions& options);
  ~JobSession();

  // Tells what the job is. `warnings` are those the user has not seen.
  void Start(const std::vector<std::string>& warnings);
  // Blocks until the job's end and fetches how it stands then. Possible errors: as JobStream::Follow; Aborted: by
  // Abort, or standard output cannot be written.
  absl::StatusOr<v1::Job> Follow();
  // Tells the end. Returns the exit code.
  int Finish(const v1::Job& job);

  // Asks the coordinator to cancel the job, once, and says so. Does not wait. Where the daemons are our own and the
  // coordinator cannot record the wish (its disk is full), Follow ends as by Abort, and the daemons are to be stopped.
  void Cancel(const std::string& reason);
  // Ends Follow with `why`.
  void Abort(const std::string& why);
  // A sentence of trainctl's own, on standard error.
  void Aside(absl::string_view text);
  void Notice(absl::string_view level, absl::string_view text);

 private:
  // After something was shown; says once that it could not be.
  void CheckOutput();

  Connection& connection_;
  const v1::Job job_;
  const JobSessionOptions options_;
  const TerminalTraits traits_;
  JobStream stream_;

  absl::Mutex mu_;
  std::unique_ptr<Progress> progress_ ABSL_GUARDED_BY(mu_);
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
  bool output_failed_ = false;  // and it was said; of the thread that follows
  std::thread canceller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::client
