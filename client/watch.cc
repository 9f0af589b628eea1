// trainctl watch: shows a job from its beginning to its end, across restarts of the coordinator.
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_session.h"
#include "client/output.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct WatchOptions {
  std::string job_id;
  bool json = false;
  ReconnectOptions reconnect;
};

// Gets the job, retrying while the coordinator does not answer.
absl::StatusOr<v1::Job> GetJobWithRetries(Connection& connection, const WatchOptions& options) {
  Retry retry(options.reconnect.retry);
  while (true) {
    auto job = [&]() -> absl::StatusOr<v1::Job> {
      ASSIGN_OR_RETURN(const std::string id, FindJob(connection, options.job_id));
      return GetJob(connection, id);
    }();
    if (job.ok() || !IsUnanswered(job.status())) return job;
    if (!retry.is_unanswered()) Say(absl::StrCat(job.status().message(), "; trying again"));
    absl::optional<absl::Duration> wait = retry.Failed(Clock::GetSteadyClock().TimeNow());
    if (!wait.has_value()) return job;
    absl::SleepFor(*wait);
  }
}

absl::StatusOr<int> Watch(const Globals& globals, const WatchOptions& options) {
  BlockSignals();
  Interrupts interrupts([] { _exit(kClientCancelled); });
  // Before the session exists, Ctrl-C exits without a message.
  interrupts.OnFirst([] { _exit(kClientCancelled); });
  ASSIGN_OR_RETURN(auto connection, Connect(globals, options.reconnect.connect_wait()));
  ASSIGN_OR_RETURN(v1::Job job, GetJobWithRetries(*connection, options));
  interrupts.OnFirst(nullptr);
  JobSession session(
      *connection, job,
      {.json = options.json,
       .logs_place = absl::StrCat("trainctl --coordinator ", globals.coordinator, " logs ", job.job_id()),
       .watch_hint = absl::StrCat("To watch it: trainctl --coordinator ", globals.coordinator, " watch ", job.job_id()),
       .retry = options.reconnect.retry});
  session.Start({job.warnings().begin(), job.warnings().end()});
  interrupts.OnFirst([&session, &job] {
    session.Abort(absl::StrCat("no longer watching; job ", job.job_id(), " continues (trainctl cancel ends it)"));
  });
  auto ended = session.Follow();
  interrupts.OnFirst(nullptr);
  if (interrupts.interrupted() && !ended.ok()) return absl::CancelledError(ended.status().message());
  RETURN_IF_ERROR(ended.status());
  return session.Finish(*ended);
}

}  // namespace

void AddWatch(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<WatchOptions>();
  CLI::App* verb = app.add_subcommand("watch", "Show a job's steps, evaluations and checkpoints until it ends");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  AddJson(*verb, &options->json, "One JSON object per line");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer(
      "Shows every event once and in order, even if the coordinator restarts meanwhile. The exit code is the\n"
      "job's. Ctrl-C stops watching; the job continues.\n\n"
      "Examples:\n"
      "  trainctl watch k3x7q2ab\n"
      "  trainctl watch k3x7q2ab --json | jq 'select(.event == \"eval\") | .loss'");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      auto exit_code = Watch(globals, *options);
      return exit_code.ok() ? *exit_code : ReportStatus(exit_code.status(), options->json);
    };
  });
}

}  // namespace trainyard::client
