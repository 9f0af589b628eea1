// trainctl restart, pause, resume, set-priority: requests of an operator about a job. Each returns once the request is
// stored.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "client/text.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct Options {
  std::string job_id;
  std::string reason;
  uint32_t priority = 0;
  bool now = false;
  bool from_start = false;
  uint64_t if_version = 0;
  bool json = false;
};

using Operation = absl::StatusOr<v1::Job> (*)(Connection& connection, const Options& options);

template <typename Request>
Request RequestOf(const Options& options) {
  Request request;
  request.set_job_id(options.job_id);
  request.set_reason(options.reason);
  request.set_expected_version(options.if_version);
  return request;
}

absl::StatusOr<v1::Job> Restart(Connection& connection, const Options& options) {
  auto request = RequestOf<v1::RestartRequest>(options);
  request.set_now(options.now);
  request.set_request_id(RandomId(kRequestIdLength));
  return RestartJob(connection, request);
}

absl::StatusOr<v1::Job> Pause(Connection& connection, const Options& options) {
  auto request = RequestOf<v1::PauseRequest>(options);
  request.set_now(options.now);
  return PauseJob(connection, request);
}

absl::StatusOr<v1::Job> Resume(Connection& connection, const Options& options) {
  auto request = RequestOf<v1::ResumeRequest>(options);
  request.set_from_start(options.from_start);
  return ResumeJob(connection, request);
}

absl::StatusOr<v1::Job> SetPriority(Connection& connection, const Options& options) {
  auto request = RequestOf<v1::SetPriorityRequest>(options);
  request.set_priority(options.priority);
  return SetJobPriority(connection, request);
}

absl::Status Operate(const Globals& globals, Options options, Operation operation) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(options.job_id, FindJob(*connection, options.job_id));
  ASSIGN_OR_RETURN(v1::Job job, operation(*connection, options));
  if (options.json) {
    PrintJson(JobJson(job));
    return absl::OkStatus();
  }
  std::string reason = job.reason().empty() ? "" : absl::StrCat(": ", Printable(job.reason(), 500));
  Print(absl::StrCat(JobTitle(job), " is ", StateName(job.state()), reason, "\n"));
  return absl::OkStatus();
}

// Declares the common options of the verbs.
CLI::App* AddJobVerb(CLI::App& app, const Globals& globals, Chosen* chosen, const char* name, const char* help,
                     const std::shared_ptr<Options>& options, Operation operation) {
  options->reason = absl::StrCat("trainctl ", name);
  CLI::App* verb = app.add_subcommand(name, help);
  verb->add_option("job", options->job_id, kJobHelp)->required();
  verb->add_option("--reason", options->reason, "Reason, recorded in the events");
  AddIfVersion(*verb, &options->if_version);
  AddJson(*verb, &options->json, "Print the job as a JSON object");
  verb->callback([&globals, options, chosen, operation] {
    *chosen = [&globals, options, operation] {
      return ReportStatus(Operate(globals, *options, operation), options->json);
    };
  });
  return verb;
}

}  // namespace

void AddRestart(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddJobVerb(app, globals, chosen, "restart",
                              "Save a job at its next step and restart its process group", options, Restart);
  verb->add_flag("--now", options->now,
                 "Kill the ranks immediately, without a save; steps since the last save are lost");
  verb->footer(
      "Does not count against recovery.max_restarts. Returns once the request is stored; trainctl watch shows\n"
      "the restart.\n\n"
      "Examples:\n  trainctl restart k3x7q2ab\n  trainctl restart k3x7q2ab --now --reason 'stuck file system'");
}

void AddPause(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddJobVerb(app, globals, chosen, "pause",
                              "Save a job, stop its ranks and free its slots until it is resumed", options, Pause);
  verb->add_flag("--now", options->now,
                 "Kill the ranks immediately, without a save; steps since the last save are lost");
  verb->footer(
      "The ranks stop after a step that they agree on, and save it. If that save fails, the job is not paused\n"
      "and continues training. With --now it is paused without a save, and its ranks on unreachable hosts are\n"
      "treated as ended. Pausing a paused job is not an error.\n\n"
      "Examples:\n  trainctl pause k3x7q2ab --reason 'the cluster is needed for a demo'");
}

void AddResume(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddJobVerb(app, globals, chosen, "resume", "Queue a paused job again", options, Resume);
  verb->add_flag("--from-start", options->from_start,
                 "Resume even if no checkpoint contains the steps that were made: train them again");
  verb->footer("Examples:\n  trainctl resume k3x7q2ab\n  trainctl resume k3x7q2ab --from-start");
}

void AddSetPriority(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddJobVerb(app, globals, chosen, "set-priority", "Change the priority of a job", options, SetPriority);
  verb->add_option("priority", options->priority, "0 to 100; jobs with a greater number start first")
      ->required()
      ->check(CLI::Range(0, 100));
  verb->footer(
      "Changes the place of a waiting job in the queue. A running job keeps its slots; with a lower priority it\n"
      "may be preempted, if the coordinator permits preemption.\n\n"
      "Examples:\n  trainctl set-priority k3x7q2ab 80 --reason 'deadline on Friday'");
}

}  // namespace trainyard::client
