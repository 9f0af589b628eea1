// Metrics of a job whose run folder is on another machine: the reports that the coordinator has in memory.
#include <grpcpp/grpcpp.h>

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/metrics_source.h"
#include "client/text.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"

namespace trainyard::client {
namespace {

// Past events arrive without a pause. After them, nothing arrives while the job makes no steps.
constexpr absl::Duration kPauseMax = absl::Seconds(15);
constexpr size_t kPlaceBytes = 500;

// Cancels a call that has received nothing for kPauseMax.
class PauseWatch {
 public:
  explicit PauseWatch(grpc::ClientContext& context) : thread_([this, &context] { Run(context); }) {}
  ~PauseWatch() {
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }
  PauseWatch(const PauseWatch&) = delete;
  PauseWatch& operator=(const PauseWatch&) = delete;

  void Received() {
    absl::MutexLock lock(&mu_);
    ++received_;
  }
  bool Cancelled() {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }

 private:
  void Run(grpc::ClientContext& context) {
    absl::MutexLock lock(&mu_);
    while (!ended_) {
      const uint64_t before = received_;
      changed_.AwaitFor(&mu_, kPauseMax, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
      if (ended_ || received_ != before) continue;
      cancelled_ = true;
      context.TryCancel();
      return;
    }
  }

  absl::Mutex mu_;
  SteadyCondVar changed_;
  uint64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // declared last, because it uses the fields above
};

class JobMetricsSource final : public MetricsSource {
 public:
  JobMetricsSource(const v1::Job& job, const std::string& folder_owner)
      : MetricsSource(absl::StrCat(job.spec().name(), "-", job.job_id()),
                      absl::StrCat("the coordinator's reports of ", JobTitle(job))),
        folder_(Printable(job.spec().checkpoint().dir(), kPlaceBytes)),
        folder_owner_(Printable(folder_owner, kPlaceBytes)),
        reports_every_step_(job.spec().has_train()) {}

  void Add(const v1::Event& event) {
    absl::optional<MetricsRecord> record = RecordOfEvent(event);
    if (!record.has_value()) return;
    // A coordinator that restarted may receive reports again, so reports that are not newer are left out. Steps and
    // evaluations are compared separately, because a script may report an evaluation after later steps.
    uint64_t& last_step = record->is_eval ? last_eval_ : last_step_;
    if (record->step <= last_step) return;
    last_step = record->step;
    records_.push_back(*std::move(record));
  }
  void SetIncomplete(const std::string& why) { completeness_ = absl::UnavailableError(why); }
  absl::Status Completeness() const override { return completeness_; }

 private:
  absl::Status ReadAll(const Use& use) override {
    for (const MetricsRecord& record : records_) {
      if (!use(record)) break;
    }
    return absl::OkStatus();
  }

  std::string WhyMissing() const override {
    if (!reports_every_step_) return "";
    return absl::StrCat("the coordinator keeps the newest ", limits::kJobEvents,
                        " reports of a job in memory; after it has restarted, the worker daemons send their newest ",
                        limits::kDaemonReports, " again. ",
                        folder_owner_.empty()
                            ? absl::StrCat(folder_,
                                           "/metrics.jsonl has all steps: run this command on the machine with that "
                                           "folder")
                            : absl::StrCat("On this machine ", folder_, " belongs to job ", folder_owner_,
                                           " now; metrics.jsonl in the run folder on the machine where the requested "
                                           "job ran has all steps"));
  }

  const std::string folder_;
  const std::string folder_owner_;
  const bool reports_every_step_;
  std::vector<MetricsRecord> records_;
  uint64_t last_step_ = 0;
  uint64_t last_eval_ = 0;
  absl::Status completeness_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsSource>> ReadReportsOfJob(Connection& connection, const v1::Job& job,
                                                                const std::string& folder_owner) {
  auto source = std::make_unique<JobMetricsSource>(job, folder_owner);
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(Connection::Stub stub, connection.Begin(context));
  v1::WatchRequest request;
  request.set_job_id(job.job_id());
  auto reader = stub->Watch(&context, request);
  bool has_all = false, paused = false;
  {
    PauseWatch pause(context);
    v1::Event event;
    while (!has_all && reader->Read(&event)) {
      pause.Received();
      source->Add(event);
      // Steps that the job has made since the request are not part of the answer.
      has_all = !IsFinal(job.state()) && event.has_step() && event.step().step() >= job.last_step();
    }
    paused = pause.Cancelled();
  }
  if (has_all) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!has_all && !paused && !status.ok()) return connection.ToStatus(status, context);
  if (paused && job.last_step() > 0) {
    source->SetIncomplete(absl::StrCat("the coordinator sent no report of step ", job.last_step(), ", the last of ",
                                       JobTitle(job), ", within ", absl::FormatDuration(kPauseMax),
                                       ": the newest steps are missing"));
  }
  return source;
}

}  // namespace trainyard::client
